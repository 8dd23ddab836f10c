#include "cache/cache_session.h"

#include "session/bytes.h"

namespace varve {
namespace {

std::string KindName(uint32_t kind) {
  switch (static_cast<SessionKind>(kind)) {
    case SessionKind::kSequence:
      return "sequence caches";
    case SessionKind::kCells:
      return "cell caches";
  }
  return "kind " + std::to_string(kind);
}

Status Differs(const char* field, const std::string& stored, const std::string& own) {
  return Status(StatusCode::kIncompatible,
                std::string(field) + " is " + stored + " in the session, " + own + " here");
}

}  // namespace

void PutFileSection(SessionKind kind, uint32_t n_caches, std::string_view model,
                    SessionWriter* writer) {
  ByteWriter& own = writer->Add(SectionType::kFile, 0).own;
  own.Put(static_cast<uint32_t>(kind));
  own.Put(n_caches);
  own.PutAll(model);
}

Status CheckFileSection(SessionKind kind, uint32_t n_caches, std::string_view model,
                        SessionReader* reader) {
  Result<std::vector<std::byte>> bytes = reader->Read(SectionType::kFile, 0);
  if (!bytes.ok()) return bytes.status();
  ByteReader from(bytes.value());
  const auto stored_kind = from.Get<uint32_t>();
  const auto stored_caches = from.Get<uint32_t>();
  if (!from.ok())
    return Status(StatusCode::kBadFormat, SectionName(SectionType::kFile, 0) + " is cut short");
  if (stored_kind != static_cast<uint32_t>(kind))
    return Differs("kind", KindName(stored_kind), KindName(static_cast<uint32_t>(kind)));
  if (stored_caches != n_caches)
    return Differs("n_caches", std::to_string(stored_caches), std::to_string(n_caches));
  const std::span<const std::byte> text = from.Take(from.n_left());
  const std::string_view stored(reinterpret_cast<const char*>(text.data()), text.size());
  if (model.empty() || stored == model) return Status();
  return Differs("model", '"' + std::string(stored) + '"', '"' + std::string(model) + '"');
}

}  // namespace varve
