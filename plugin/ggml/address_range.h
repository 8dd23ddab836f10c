// A reserved range of addresses. KV tensors only lend their addresses as handles; pages appear
// where plain storage is asked for, and nowhere else.
#ifndef VARVE_PLUGIN_GGML_ADDRESS_RANGE_H_
#define VARVE_PLUGIN_GGML_ADDRESS_RANGE_H_

#include <cstddef>
#include <cstdint>

namespace varve::plugin {

class AddressRange {
 public:
  AddressRange() = default;
  ~AddressRange();
  AddressRange(const AddressRange&) = delete;
  AddressRange& operator=(const AddressRange&) = delete;

  /// Reserves `bytes` without any access right. False: the system has no such range.
  bool Reserve(size_t bytes);

  /// Makes [offset, offset+bytes) ordinary memory, zero where nothing was written. Rounds outward
  /// to pages.
  bool MakeWritable(size_t offset, size_t bytes);

  /// Zeroes a writable part and gives its whole pages back to the system.
  void Zero(size_t offset, size_t bytes);

  std::byte* base() const { return base_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* base_ = nullptr;
  size_t bytes_ = 0;  ///< rounded up to pages
};

}  // namespace varve::plugin

#endif  // VARVE_PLUGIN_GGML_ADDRESS_RANGE_H_
