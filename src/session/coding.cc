#include "session/coding.h"

#include <utility>

namespace varve {
namespace {

using NamedField = std::pair<const char*, uint64_t>;

std::array<NamedField, 14> FieldsOf(const CodingRecord& record) {
  return {{{"codec", static_cast<uint64_t>(record.codec)},
           {"element_type", record.element_type},
           {"axis", record.axis},
           {"group_size", record.group_size},
           {"n_tokens", record.n_tokens},
           {"dim", record.dim},
           {"n_streams", record.n_streams},
           {"bits[0]", record.bits[0]},
           {"bits[1]", record.bits[1]},
           {"bits[2]", record.bits[2]},
           {"exact[0]", record.exact[0]},
           {"exact[1]", record.exact[1]},
           {"exact[2]", record.exact[2]},
           {"row_bytes", record.row_bytes}}};
}

}  // namespace

CodingRecord DescribeAffine(const AffineBlockLayout& layout) {
  CodingRecord record;
  record.codec = Codec::kGroupAffine;
  record.element_type = static_cast<uint64_t>(layout.format);
  record.axis = static_cast<uint64_t>(layout.shape.axis);
  record.group_size = static_cast<uint64_t>(layout.shape.group_size);
  record.n_tokens = static_cast<uint64_t>(layout.shape.n_tokens);
  record.dim = static_cast<uint64_t>(layout.shape.dim);
  record.n_streams = static_cast<uint64_t>(layout.n_widths);
  for (int i = 0; i < layout.n_widths; ++i) {
    record.bits[static_cast<size_t>(i)] =
        static_cast<uint64_t>(layout.widths[static_cast<size_t>(i)]);
    record.exact[static_cast<size_t>(i)] = layout.is_exact(i) ? 1 : 0;
  }
  record.row_bytes = layout.bytes();
  return record;
}

CodingRecord DescribeBlock(const BlockLayout& layout) {
  CodingRecord record;
  record.codec = layout.scheme.codec;
  record.element_type = static_cast<uint64_t>(ExactFormat::kF16);
  record.n_tokens = kBlockTokens;
  record.dim = static_cast<uint64_t>(layout.head_dim);
  record.bits[0] = layout.scheme.bits;
  record.exact[0] = layout.scheme.codec == Codec::kF16 ? 1 : 0;
  record.row_bytes = layout.head_bytes();
  return record;
}

void PutCoding(const CodingRecord& record, ByteWriter* to) {
  for (const auto& [field, value] : FieldsOf(record)) to->Put(value);
}

Status CheckCoding(const CodingRecord& own, const std::string& name, ByteReader* from) {
  for (const auto& [field, value] : FieldsOf(own)) {
    const auto stored = from->Get<uint64_t>();
    if (!from->ok()) return Status(StatusCode::kBadFormat, name + ": cut short");
    if (stored == value) continue;
    return Status(StatusCode::kIncompatible, name + ": " + field + " is " + std::to_string(stored) +
                                                 " in the session, " + std::to_string(value) +
                                                 " here");
  }
  return Status();
}

}  // namespace varve
