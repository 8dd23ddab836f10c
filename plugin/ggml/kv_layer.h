// One layer of a llama.cpp KV cache: its K and V tensors as llama.cpp declared them, and what
// really holds their rows.
#ifndef VARVE_PLUGIN_GGML_KV_LAYER_H_
#define VARVE_PLUGIN_GGML_KV_LAYER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "address_range.h"
#include "geometry.h"
#include "settings.h"
#include "varve/varve.h"

namespace varve::plugin {

class KvLayer;

/// A KV tensor [n_streams][n_cells][row] inside a buffer.
struct KvTensor {
  KvLayer* layer = nullptr;
  varve_side side = VARVE_KEY;
  ggml_type type = GGML_TYPE_F16;
  size_t offset = 0;  ///< of its first byte in the buffer
  size_t bytes = 0;
  size_t row_bytes = 0;  ///< of one cell, all KV heads
  int64_t row_elements = 0;
  int64_t n_cells = 0;
  int64_t n_streams = 0;

  bool present() const { return bytes != 0; }
};

/// kUndecided: nothing written, reads as zeros. kPacked: rows live in a varve_cells. kPlain: real
/// pages, ggml's layout.
enum class KvForm { kUndecided, kPacked, kPlain };

/// Threads: every public function takes the buffer's lock.
class KvLayer {
 public:
  KvLayer(int index, std::string tag, ConfigPtr config, AddressRange* range, std::mutex* mutex);

  int index() const { return index_; }
  const std::string& tag() const { return tag_; }

  /// Takes a tensor named cache_<tag>k_l<index> or cache_<tag>v_l<index>. False: no memory for it.
  bool AddTensor(varve_side side, const ggml_tensor* tensor, size_t offset);

  KvTensor& tensor(varve_side side) { return side == VARVE_KEY ? key_ : value_; }
  bool has_value() const { return value_.present(); }

  KvForm form() const;
  std::string plain_reason() const;  ///< why the layer is in plain storage, "" if it is not

  /// What attention says about the heads. False: the layer is packed with other ones. head_dim_v 0:
  /// V is a part of K.
  bool LearnAttention(HeadShape key, int head_dim_v);
  /// What a write says about the heads of one side; attention's word counts more.
  void LearnWrite(varve_side side, HeadShape heads);
  void LearnRope(RopeShape rope);

  /// Makes an undecided layer packed, or plain when its rows cannot be packed.
  bool Settle();

  /// Gives the layer real pages in ggml's layout and moves what it holds there. `loud`: say so at
  /// once.
  bool MakePlain(const std::string& reason, bool loud);

  /// Writes n whole rows of a packed layer into the cells index[0..n). False: told in one line.
  /// positions: one a row, or empty.
  bool WriteRows(varve_side side, const std::vector<int64_t>& index,
                 const std::vector<int32_t>& positions, const void* rows, varve_type type,
                 size_t row_stride_bytes, int n_threads);

  /// Any byte range of a tensor in its declared layout; writing settles the layer. False: told in
  /// one line; the bytes are then zeros.
  bool ReadBytes(varve_side side, size_t offset, void* data, size_t size) const;
  bool WriteBytes(varve_side side, size_t offset, const void* data, size_t size, int n_threads);

  /// Moves n rows of one side of `from`, packed as they are where both allow. False: not possible,
  /// copy bytes instead.
  bool CopyRows(varve_side side, int64_t first, const KvLayer& from, int64_t from_first, int64_t n);

  /// Attention over a packed layer.
  bool Attend(const varve_attend_args& args);

  /// A shift of a packed layer. VARVE_ERROR_UNSUPPORTED, untold: a turn that the codes cannot take.
  varve_status Shift(int64_t first, const std::vector<int32_t>& delta,
                     const varve_rope_params& rope);

  /// Forgets everything; the form stays.
  void Clear();

  /// Figures of a packed layer; false if it is not packed.
  bool Stats(varve_cells_stats* stats) const;

  void set_n_layers(int n_layers) { n_layers_ = n_layers; }

 private:
  struct CellsDeleter {
    void operator()(varve_cells* cells) const { varve_cells_destroy(cells); }
  };

  bool MakePlainLocked(const std::string& reason, bool loud);
  bool SettleLocked();
  bool ReadBytesLocked(const KvTensor& from, size_t offset, void* data, size_t size) const;
  bool WriteRowsLocked(const KvTensor& to, const std::vector<int64_t>& index,
                       const std::vector<int32_t>& positions, const void* rows, varve_type type,
                       size_t row_stride_bytes, int n_threads);
  bool Failed(const char* what) const;
  std::byte* PlainData(const KvTensor& tensor) const { return range_->base() + tensor.offset; }
  const KvTensor& tensor(varve_side side) const { return side == VARVE_KEY ? key_ : value_; }

  const int index_;
  const std::string tag_;
  const ConfigPtr config_;
  AddressRange* const range_;
  std::mutex* const mutex_;
  std::atomic<int> n_layers_ = 1;
  KvTensor key_;
  KvTensor value_;
  HeadShape key_heads_;
  int head_dim_v_ = 0;
  bool attention_seen_ = false;
  RopeShape rope_;
  KvForm form_ = KvForm::kUndecided;
  std::string plain_reason_;
  std::unique_ptr<varve_cells, CellsDeleter> cells_;
  // Positions of the last K write: the V write of the same cells has no ROPE behind it.
  std::vector<int64_t> last_index_;
  std::vector<int32_t> last_positions_;
};

/// varve_type of a type whose rows can be packed (f16, bf16) or converted (f32); false for others.
bool ToVarveType(ggml_type type, varve_type* out);

}  // namespace varve::plugin

#endif  // VARVE_PLUGIN_GGML_KV_LAYER_H_
