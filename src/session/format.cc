#include "session/format.h"

namespace varve {
namespace {

const char* TypeName(SectionType type) {
  switch (type) {
    case SectionType::kFile:
      return "file";
    case SectionType::kCache:
      return "cache";
    case SectionType::kCoding:
      return "coding";
    case SectionType::kState:
      return "state";
    case SectionType::kKeyTables:
      return "key_tables";
    case SectionType::kKeyStatistics:
      return "key_statistics";
    case SectionType::kKeys:
      return "keys";
    case SectionType::kValues:
      return "values";
    case SectionType::kAmcTiers:
      return "amc_tiers";
    case SectionType::kAmcSaliencies:
      return "amc_saliencies";
    case SectionType::kAmcMemory:
      return "amc_memory";
    case SectionType::kAmcRecords:
      return "amc_records";
    case SectionType::kAmcChannelOrder:
      return "amc_channel_order";
    case SectionType::kCellBlocks:
      return "cell_blocks";
    case SectionType::kCellExactRows:
      return "cell_exact_rows";
    case SectionType::kCellRotations:
      return "cell_rotations";
  }
  return nullptr;
}

}  // namespace

std::string SectionName(SectionType type, uint32_t cache) {
  const char* name = TypeName(type);
  return "section " +
         (name != nullptr ? std::string(name)
                          : "type " + std::to_string(static_cast<uint32_t>(type))) +
         " of cache " + std::to_string(cache);
}

}  // namespace varve
