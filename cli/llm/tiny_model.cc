#include "llm/tiny_model.h"

#include <fmt/format.h>
#include <ggml.h>
#include <gguf.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <vector>

#include "support/failure.h"

namespace varve::cli {
namespace {

constexpr int kLayers = 2;
constexpr int kHeads = 4;
constexpr int kKvHeads = 2;
constexpr int kHeadDim = 64;
constexpr int kEmbd = kHeads * kHeadDim;
constexpr int kFeedForward = 256;
constexpr float kAttentionGain = 8;  // so that what attention finds decides the next token

class Writer {
 public:
  Writer()
      : gguf_(gguf_init_empty(), gguf_free),
        tensors_(ggml_init({size_t{16} << 20, nullptr, false}), ggml_free),
        random_(1) {
    gguf_set_val_str(gguf_.get(), "general.architecture", "llama");
    gguf_set_val_str(gguf_.get(), "general.name", "varve doctor");
    gguf_set_val_str(gguf_.get(), "tokenizer.ggml.model", "no_vocab");
    Set("vocab_size", kTinyModelVocab);
    Set("context_length", 2048);
    Set("embedding_length", kEmbd);
    Set("block_count", kLayers);
    Set("feed_forward_length", kFeedForward);
    Set("rope.dimension_count", kHeadDim);
    Set("attention.head_count", kHeads);
    Set("attention.head_count_kv", kKvHeads);
    gguf_set_val_f32(gguf_.get(), "llama.attention.layer_norm_rms_epsilon", 1e-5F);
  }

  void AddMatrix(const std::string& name, int n_in, int n_out, float gain = 1) {
    std::normal_distribution<float> values(0.0F, gain / std::sqrt(static_cast<float>(n_in)));
    ggml_tensor* tensor = ggml_new_tensor_2d(tensors_.get(), GGML_TYPE_F32, n_in, n_out);
    auto* data = static_cast<float*>(tensor->data);
    for (int64_t i = 0; i < ggml_nelements(tensor); ++i) data[i] = values(random_);
    Add(tensor, name);
  }

  void AddNorm(const std::string& name) {
    ggml_tensor* tensor = ggml_new_tensor_1d(tensors_.get(), GGML_TYPE_F32, kEmbd);
    std::fill_n(static_cast<float*>(tensor->data), kEmbd, 1.0F);
    Add(tensor, name);
  }

  bool Write(const std::string& path) const {
    return gguf_write_to_file(gguf_.get(), path.c_str(), false);
  }

 private:
  void Set(const std::string& key, uint32_t value) {
    gguf_set_val_u32(gguf_.get(), ("llama." + key).c_str(), value);
  }
  void Add(ggml_tensor* tensor, const std::string& name) {
    ggml_set_name(tensor, name.c_str());
    gguf_add_tensor(gguf_.get(), tensor);
  }

  std::unique_ptr<gguf_context, decltype(&gguf_free)> gguf_;
  std::unique_ptr<ggml_context, decltype(&ggml_free)> tensors_;
  std::mt19937 random_;
};

}  // namespace

std::string WriteTinyModel() {
  Writer writer;
  writer.AddMatrix("token_embd.weight", kEmbd, kTinyModelVocab);
  writer.AddNorm("output_norm.weight");
  writer.AddMatrix("output.weight", kEmbd, kTinyModelVocab);
  for (int i = 0; i < kLayers; ++i) {
    const std::string block = fmt::format("blk.{}.", i);
    writer.AddNorm(block + "attn_norm.weight");
    writer.AddMatrix(block + "attn_q.weight", kEmbd, kEmbd);
    writer.AddMatrix(block + "attn_k.weight", kEmbd, kKvHeads * kHeadDim);
    writer.AddMatrix(block + "attn_v.weight", kEmbd, kKvHeads * kHeadDim);
    writer.AddMatrix(block + "attn_output.weight", kEmbd, kEmbd, kAttentionGain);
    writer.AddNorm(block + "ffn_norm.weight");
    writer.AddMatrix(block + "ffn_gate.weight", kEmbd, kFeedForward);
    writer.AddMatrix(block + "ffn_up.weight", kEmbd, kFeedForward);
    writer.AddMatrix(block + "ffn_down.weight", kFeedForward, kEmbd);
  }
  std::string path = (std::filesystem::temp_directory_path() / "varve-doctor-XXXXXX").string();
  const int fd = mkstemp(path.data());
  if (fd < 0) Fail(ExitCode::kFailed, "cannot create {}: {}", path, std::strerror(errno));
  close(fd);
  if (!writer.Write(path)) {
    unlink(path.c_str());
    Fail(ExitCode::kFailed, "cannot write {}: {}", path, std::strerror(errno));
  }
  return path;
}

}  // namespace varve::cli
