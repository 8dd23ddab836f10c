// CRC-32C (Castagnoli): reflected polynomial 0x82f63b78, start and final xor 0xffffffff (RFC 3720,
// appendix B.4).
#ifndef VARVE_SESSION_CRC32C_H_
#define VARVE_SESSION_CRC32C_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace varve {

/// CRC of what `crc` covers followed by `bytes`; 0 to begin with.
uint32_t Crc32c(uint32_t crc, std::span<const std::byte> bytes);

}  // namespace varve

#endif  // VARVE_SESSION_CRC32C_H_
