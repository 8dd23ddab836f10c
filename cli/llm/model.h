// Owning faces of llama_model and llama_context; failures carry what llama.cpp logged.
#ifndef VARVE_CLI_LLM_MODEL_H_
#define VARVE_CLI_LLM_MODEL_H_

#include <ggml-backend.h>
#include <llama.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace varve::cli {

struct ModelDeleter {
  void operator()(llama_model* model) const { llama_model_free(model); }
};
struct ContextDeleter {
  void operator()(llama_context* context) const { llama_free(context); }
};
using ModelPtr = std::unique_ptr<llama_model, ModelDeleter>;
using ContextPtr = std::unique_ptr<llama_context, ContextDeleter>;

/// Fails unless `path` is a readable regular file that starts like a GGUF.
void CheckModelFile(const std::string& path);

/// Weights on the CPU; `device` (may be null) is offered for the KV cache.
ModelPtr LoadModel(const std::string& path, ggml_backend_dev_t device);

/// Metadata and tensor shapes only; nothing is read or allocated for weights.
ModelPtr LoadModelWithoutWeights(const std::string& path);

struct ContextOptions {
  int n_ctx = 0;
  int n_batch = 512;  ///< logical and physical batch
  int n_threads = 0;  ///< 0: one a core
  ggml_type type_k = GGML_TYPE_F16;
  ggml_type type_v = GGML_TYPE_F16;
  bool kv_on_device = false;  ///< KV cache on the device that the model was loaded with
  ggml_backend_sched_eval_callback on_node = nullptr;
  void* on_node_data = nullptr;
};

ContextPtr MakeContext(llama_model* model, const ContextOptions& options);

/// Decodes tokens at positions [first, first+n). Row i of the logits is that of token i when
/// all_logits, else only the last token has one. Fails on any error, naming the position.
void Decode(llama_context* context, std::span<const llama_token> tokens, int first,
            bool all_logits);

std::vector<llama_token> Tokenize(const llama_model* model, const std::string& text,
                                  bool add_special);
std::string TokenText(const llama_model* model, llama_token token);

/// Whole content of a file; "-" is stdin. Fails naming `option`.
std::string ReadText(const std::string& option, const std::string& path);

/// Cores that --threads 0 stands for.
int DefaultThreads();

}  // namespace varve::cli

#endif  // VARVE_CLI_LLM_MODEL_H_
