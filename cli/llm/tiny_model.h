// A llama model of random weights, small enough to write and run in a moment.
#ifndef VARVE_CLI_LLM_TINY_MODEL_H_
#define VARVE_CLI_LLM_TINY_MODEL_H_

#include <string>

namespace varve::cli {

inline constexpr int kTinyModelVocab = 256;

/// Writes it (2 layers, 4 heads, 2 KV heads, head_dim 64, about 2 MB) to a new file in the system's
/// temporary folder and returns its path. The caller removes it. Fails when the folder cannot be
/// written.
std::string WriteTinyModel();

}  // namespace varve::cli

#endif  // VARVE_CLI_LLM_TINY_MODEL_H_
