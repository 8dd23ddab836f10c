// Runs a function when a scope is left, by whatever way.
#ifndef VARVE_BASE_SCOPE_EXIT_H_
#define VARVE_BASE_SCOPE_EXIT_H_

#include <utility>

namespace varve {

template <typename F>
class [[nodiscard]] ScopeExit {
 public:
  explicit ScopeExit(F f) : f_(std::move(f)) {}
  ~ScopeExit() {
    if (active_) f_();
  }
  ScopeExit(const ScopeExit&) = delete;
  ScopeExit& operator=(const ScopeExit&) = delete;

  /// The function is not run after all.
  void Cancel() { active_ = false; }

 private:
  F f_;
  bool active_ = true;
};

}  // namespace varve

#endif  // VARVE_BASE_SCOPE_EXIT_H_
