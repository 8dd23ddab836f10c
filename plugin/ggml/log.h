// One-line messages of the plugin on stderr: what is active, and why something is not.
#ifndef VARVE_PLUGIN_GGML_LOG_H_
#define VARVE_PLUGIN_GGML_LOG_H_

namespace varve::plugin {

/// Writes "varve: <text>\n" in one call, so lines of several threads do not mix. Nothing when
/// VARVE_QUIET is set: a host that shows the figures itself.
__attribute__((format(printf, 1, 2))) void Say(const char* format, ...);

}  // namespace varve::plugin

#endif  // VARVE_PLUGIN_GGML_LOG_H_
