#include "golden/npy.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "base/f16.h"

namespace golden {
namespace {

// Text of the value behind 'key': in the header's dictionary.
std::string HeaderValue(const std::string& header, const std::string& key) {
  const size_t at = header.find("'" + key + "':");
  if (at == std::string::npos) throw std::runtime_error("no " + key + " in the header");
  size_t first = at + key.size() + 3;
  while (header[first] == ' ') ++first;
  const char close = header[first] == '(' ? ')' : header[first] == '\'' ? '\'' : ',';
  const size_t last = header.find(close, first + 1);
  return header.substr(first, last - first);
}

template <typename T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

}  // namespace

int64_t NpyArray::size() const {
  int64_t n = 1;
  for (const int64_t dim : shape) n *= dim;
  return n;
}

size_t NpyArray::element_bytes() const { return static_cast<size_t>(descr.back() - '0'); }

double NpyArray::at(int64_t index) const {
  const std::byte* from = bytes.data() + static_cast<size_t>(index) * element_bytes();
  if (descr == "<f2") return static_cast<double>(varve::F16ToF32(Load<uint16_t>(from)));
  if (descr == "<f4") return static_cast<double>(Load<float>(from));
  if (descr == "<f8") return Load<double>(from);
  if (descr == "<u2") {
    const uint16_t bits = Load<uint16_t>(from);
    return is_bf16 ? static_cast<double>(varve::Bf16ToF32(bits)) : bits;
  }
  if (descr == "<i4") return Load<int32_t>(from);
  if (descr == "<i8") return static_cast<double>(Load<int64_t>(from));
  if (descr == "|u1") return Load<uint8_t>(from);
  return Load<int8_t>(from);
}

NpyArray ReadNpy(const std::string& path) {
  const auto fail = [&](const std::string& why) { return std::runtime_error(path + ": " + why); };
  std::ifstream file(path, std::ios::binary);
  if (!file) throw fail("cannot be opened");
  const std::string data((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (data.size() < 12 || data.compare(0, 6, "\x93NUMPY") != 0) throw fail("is not an NPY file");
  const bool version1 = data[6] == 1;
  const auto byte = [&](size_t i) {
    return static_cast<size_t>(static_cast<unsigned char>(data[i]));
  };
  size_t header_bytes = byte(8) + (byte(9) << 8);
  if (!version1) header_bytes += (byte(10) << 16) + (byte(11) << 24);
  const size_t start = version1 ? 10 : 12;
  if (start + header_bytes > data.size()) throw fail("ends within its header");
  const std::string header = data.substr(start, header_bytes);
  NpyArray array;
  try {
    array.descr = HeaderValue(header, "descr").substr(1);
    if (HeaderValue(header, "fortran_order") != "False")
      throw std::runtime_error("is in Fortran order");
    const std::string shape = HeaderValue(header, "shape").substr(1);
    for (size_t at = 0; at < shape.size();) {
      size_t used = 0;
      array.shape.push_back(std::stoll(shape.substr(at), &used));
      at += used;
      while (at < shape.size() && (shape[at] == ',' || shape[at] == ' ')) ++at;
    }
  } catch (const std::exception& error) {
    throw fail(error.what());
  }
  constexpr const char* kTypes[] = {"<f2", "<f4", "<f8", "<u2", "<i4", "<i8", "|u1", "|i1"};
  bool known = false;
  for (const char* type : kTypes) known = known || array.descr == type;
  if (!known) throw fail("has elements of type " + array.descr);
  const size_t bytes = static_cast<size_t>(array.size()) * array.element_bytes();
  if (data.size() - start - header_bytes < bytes) throw fail("ends early");
  array.bytes.resize(bytes);
  if (bytes > 0) std::memcpy(array.bytes.data(), data.data() + start + header_bytes, bytes);
  return array;
}

}  // namespace golden
