// How one tier of one side is coded, spelled out in a session file so that no reader has to guess a
// layout from shapes.
#ifndef VARVE_SESSION_CODING_H_
#define VARVE_SESSION_CODING_H_

#include <array>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "codec/group_affine_block.h"
#include "layout/block_layout.h"
#include "layout/scheme.h"
#include "session/bytes.h"

namespace varve {

/// docs/format.md, section "coding", says what each field means. Fields that a codec does not have
/// are 0.
struct CodingRecord {
  Codec codec = Codec::kF16;
  uint64_t element_type = 0;  ///< of exact numbers: 0 f32, 1 f16, 2 bf16
  uint64_t axis = 0;          ///< group_affine: 0 tokens, 1 channels
  uint64_t group_size = 0;
  uint64_t n_tokens = 0;  ///< of a payload
  uint64_t dim = 0;
  uint64_t n_streams = 1;
  std::array<uint64_t, 3> bits = {0, 0, 0};   ///< of each stream
  std::array<uint64_t, 3> exact = {0, 0, 0};  ///< 1: exact rows in place of codes
  uint64_t row_bytes = 0;                     ///< of one row's payload
};

CodingRecord DescribeAffine(const AffineBlockLayout& layout);
/// rope_pair, rotated and the f16 rows beside them.
CodingRecord DescribeBlock(const BlockLayout& layout);

void PutCoding(const CodingRecord& record, ByteWriter* to);

/// Errors: kIncompatible, naming the field that differs and both values; `name` goes before it.
[[nodiscard]] Status CheckCoding(const CodingRecord& own, const std::string& name,
                                 ByteReader* from);

}  // namespace varve

#endif  // VARVE_SESSION_CODING_H_
