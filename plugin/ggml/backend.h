// The device VARVE and the backends that llama.cpp makes on it.
#ifndef VARVE_PLUGIN_GGML_BACKEND_H_
#define VARVE_PLUGIN_GGML_BACKEND_H_

#include "ggml-backend-impl.h"

namespace varve::plugin {

/// The one device. `registry` is the registration that it belongs to.
ggml_backend_dev_t VarveDevice(ggml_backend_reg_t registry);

/// ggml_backend_set_n_threads of our backends.
void SetBackendThreads(ggml_backend_t backend, int n_threads);

}  // namespace varve::plugin

#endif  // VARVE_PLUGIN_GGML_BACKEND_H_
