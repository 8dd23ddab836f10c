// Runs graph nodes: those on packed layers on the codes, those on plain storage through the host's
// CPU backend.
#ifndef VARVE_PLUGIN_GGML_KV_OPS_H_
#define VARVE_PLUGIN_GGML_KV_OPS_H_

#include <vector>

#include "host_cpu.h"
#include "kv_buffer.h"

namespace varve::plugin {

class GraphRunner {
 public:
  void set_n_threads(int n_threads) { n_threads_ = n_threads > 0 ? n_threads : 1; }

  ggml_status Run(ggml_cgraph* graph);

 private:
  enum class Outcome { kDone, kFailed, kNotOnCodes };

  Outcome RunOnCodes(const ggml_tensor* node);
  bool SetRows(const ggml_tensor* op);
  bool Attention(const ggml_tensor* op);
  bool GetRows(const ggml_tensor* op);
  bool Copy(const ggml_tensor* op);

  int n_threads_ = 4;
  HostCpu host_cpu_;
  std::vector<float> partial_output_;  ///< attention output when V is not the first part of K
};

}  // namespace varve::plugin

#endif  // VARVE_PLUGIN_GGML_KV_OPS_H_
