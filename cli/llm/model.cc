#include "llm/model.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <thread>

#include "llm/log.h"
#include "support/failure.h"

namespace varve::cli {
namespace {

std::string Because() {
  const std::string error = LastLogError();
  return error.empty() ? "llama.cpp gave no reason; see --verbose" : error;
}

}  // namespace

void CheckModelFile(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    Fail(ExitCode::kFailed, "--model {}: no such file", path);
  }
  if (!std::filesystem::is_regular_file(path, error)) {
    Fail(ExitCode::kFailed, "--model {}: not a file", path);
  }
  std::array<char, 4> magic{};
  std::ifstream file(path, std::ios::binary);
  if (!file) Fail(ExitCode::kFailed, "--model {}: {}", path, std::strerror(errno));
  file.read(magic.data(), magic.size());
  if (!file || std::memcmp(magic.data(), "GGUF", magic.size()) != 0) {
    Fail(ExitCode::kFailed,
         "--model {}: not a GGUF file; convert the model with llama.cpp's convert_hf_to_gguf.py",
         path);
  }
}

ModelPtr LoadModel(const std::string& path, ggml_backend_dev_t device) {
  CheckModelFile(path);
  std::array<ggml_backend_dev_t, 2> devices = {device, nullptr};
  llama_model_params params = llama_model_default_params();
  params.devices = devices.data();
  params.n_gpu_layers = device ? -1 : 0;
  ForgetLog();
  ModelPtr model(llama_model_load_from_file(path.c_str(), params));
  if (!model) Fail(ExitCode::kFailed, "cannot load {}: {}", path, Because());
  return model;
}

ModelPtr LoadModelWithoutWeights(const std::string& path) {
  CheckModelFile(path);
  std::array<ggml_backend_dev_t, 1> no_devices = {nullptr};
  llama_model_params params = llama_model_default_params();
  params.devices = no_devices.data();
  params.n_gpu_layers = 0;
  params.no_alloc = true;
  params.load_mode = LLAMA_LOAD_MODE_NONE;  // mmap cannot go with no_alloc
  ForgetLog();
  ModelPtr model(llama_model_load_from_file(path.c_str(), params));
  if (!model) Fail(ExitCode::kFailed, "cannot read {}: {}", path, Because());
  return model;
}

ContextPtr MakeContext(llama_model* model, const ContextOptions& options) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(options.n_ctx);
  params.n_batch = static_cast<uint32_t>(options.n_batch);
  params.n_ubatch = params.n_batch;
  params.n_seq_max = 1;
  params.n_threads = options.n_threads > 0 ? options.n_threads : DefaultThreads();
  params.n_threads_batch = params.n_threads;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.type_k = options.type_k;
  params.type_v = options.type_v;
  params.offload_kqv = options.kv_on_device;
  params.op_offload = false;
  params.no_perf = true;
  params.swa_full = false;
  params.cb_eval = options.on_node;
  params.cb_eval_user_data = options.on_node_data;
  ForgetLog();
  ContextPtr context(llama_init_from_model(model, params));
  if (!context) {
    Fail(ExitCode::kFailed, "cannot make a context of {} tokens: {}", options.n_ctx, Because());
  }
  return context;
}

void Decode(llama_context* context, std::span<const llama_token> tokens, int first,
            bool all_logits) {
  llama_batch batch = llama_batch_init(static_cast<int32_t>(tokens.size()), 0, 1);
  batch.n_tokens = static_cast<int32_t>(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    batch.token[i] = tokens[i];
    batch.pos[i] = first + static_cast<int>(i);
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = all_logits || i + 1 == tokens.size();
  }
  ForgetLog();
  const int32_t result = llama_decode(context, batch);
  llama_batch_free(batch);
  if (result != 0) {
    Fail(ExitCode::kFailed, "decoding failed at position {} (llama_decode returned {}): {}", first,
         result, Because());
  }
  llama_synchronize(context);
}

std::vector<llama_token> Tokenize(const llama_model* model, const std::string& text,
                                  bool add_special) {
  const llama_vocab* vocab = llama_model_get_vocab(model);
  if (text.size() > INT32_MAX / 2)
    Fail(ExitCode::kFailed, "the text is larger than 1 GiB; give a part of it");
  std::vector<llama_token> tokens(text.size() + 8);
  const auto tokenize = [&] {
    return llama_tokenize(vocab, text.data(), static_cast<int32_t>(text.size()), tokens.data(),
                          static_cast<int32_t>(tokens.size()), add_special, false);
  };
  int32_t n = tokenize();
  // A byte can be several tokens: a space is written as three bytes where a vocabulary lacks it.
  if (n < 0 && n != INT32_MIN) {
    tokens.resize(static_cast<size_t>(-static_cast<int64_t>(n)));
    n = tokenize();
  }
  if (n < 0) Fail(ExitCode::kFailed, "the model's tokenizer refused the text");
  tokens.resize(static_cast<size_t>(n));
  return tokens;
}

std::string TokenText(const llama_model* model, llama_token token) {
  const llama_vocab* vocab = llama_model_get_vocab(model);
  std::string piece(256, '\0');
  const int32_t n = llama_token_to_piece(vocab, token, piece.data(),
                                         static_cast<int32_t>(piece.size()), 0, false);
  piece.resize(static_cast<size_t>(std::max(n, 0)));
  return piece;
}

std::string ReadText(const std::string& option, const std::string& path) {
  std::string text;
  if (path == "-") {
    text.assign(std::istreambuf_iterator<char>(std::cin), {});
  } else {
    std::ifstream file(path, std::ios::binary);
    std::error_code error;
    if (!file || std::filesystem::is_directory(path, error)) {
      Fail(ExitCode::kFailed, "{} {}: {}", option, path,
           file ? "is a folder" : std::strerror(errno));
    }
    text.assign(std::istreambuf_iterator<char>(file), {});
  }
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
    Fail(ExitCode::kFailed, "{} {}: the text is empty", option, path);
  }
  return text;
}

int DefaultThreads() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

}  // namespace varve::cli
