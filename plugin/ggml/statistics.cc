#include "statistics.h"

#include <semaphore.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "kv_buffer.h"
#include "log.h"
#include "settings.h"

namespace varve::plugin {
namespace {

constexpr size_t kClosedKept = 16;
constexpr int kMaxPeriodSeconds = 86400;
constexpr std::array<const char*, VARVE_MAX_TIERS> kTierNames = {"recent", "mid", "old", "sink"};

/// Figures of one buffer; tokens are those of one layer (the mean over packed layers).
struct CacheFigures {
  bool open = true;
  int64_t id = 0;
  std::string method;
  std::string layers_json;  ///< one object a packed layer
  int n_layers = 0;
  int n_plain = 0;
  std::string plain_reason;
  int64_t n_cells = 0;
  int64_t n_streams = 0;
  std::array<int64_t, VARVE_MAX_TIERS> tier_tokens = {};
  int64_t n_tokens = 0;
  uint64_t packed_bytes = 0;
  uint64_t payload_bytes = 0;
  uint64_t f16_bytes = 0;
  uint64_t declared_bytes = 0;
  uint64_t plain_bytes = 0;
  uint64_t n_demotions = 0;
  uint64_t n_promotions = 0;
  double append_seconds = 0;
  double retier_seconds = 0;
  double attend_seconds = 0;

  double BitsPerElement() const {
    return f16_bytes == 0
               ? 0.0
               : 16.0 * static_cast<double>(packed_bytes) / static_cast<double>(f16_bytes);
  }
};

struct State {
  std::mutex mutex;
  std::vector<KvBuffer*> buffers;
  std::vector<CacheFigures> closed;  ///< the last few buffers that were freed
  std::array<std::array<std::atomic<uint64_t>, 2>, GGML_OP_COUNT> op_counts = {};
  std::atomic<bool> backend_created = false;
  std::atomic<bool> kv_seen = false;
  std::string file_path;
  int period_seconds = 0;
  sem_t wake;
};

// Never destroyed: the reporting thread and buffers that a host leaks may outlive static
// destructors.
State& Global() {
  static State* state = new State;
  return *state;
}

std::string TierTokensJson(const int64_t* tier_tokens) {
  std::string json = "{";
  for (size_t tier = 0; tier < kTierNames.size(); ++tier) {
    json += std::string(tier == 0 ? "\"" : ", \"") + kTierNames[tier] +
            "\": " + std::to_string(tier_tokens[tier]);
  }
  return json + "}";
}

std::string LayerJson(int layer, const varve_cells_stats& stats) {
  char text[512];
  std::snprintf(
      text, sizeof(text),
      "{\"layer\": %d, \"tokens\": %lld, \"packed_bytes\": %llu, \"payload_bytes\": %llu, "
      "\"f16_bytes\": %llu, \"append_seconds\": %.6f, \"retier_seconds\": %.6f, "
      "\"attend_seconds\": %.6f, \"last_key_bits\": %d, \"tier_tokens\": ",
      layer, static_cast<long long>(stats.n_tokens),
      static_cast<unsigned long long>(stats.packed_bytes),
      static_cast<unsigned long long>(stats.payload_bytes),
      static_cast<unsigned long long>(stats.f16_bytes), stats.append_seconds, stats.retier_seconds,
      stats.attend_seconds, static_cast<int>(stats.last_key_bits));
  return text + TierTokensJson(stats.tier_tokens) + "}";
}

CacheFigures Collect(const KvBuffer& buffer) {
  CacheFigures figures;
  figures.id = buffer.id();
  figures.method = ConfigText(buffer.config(), "method");
  int64_t n_packed = 0;
  for (const auto& layer : buffer.layers()) {
    const KvTensor& key = layer->tensor(VARVE_KEY);
    const KvTensor& value = layer->tensor(VARVE_VALUE);
    ++figures.n_layers;
    figures.n_cells = std::max(figures.n_cells, key.n_cells);
    figures.n_streams = std::max(figures.n_streams, key.n_streams);
    figures.declared_bytes += key.bytes + value.bytes;
    if (layer->form() == KvForm::kPlain) {
      if (figures.n_plain++ == 0) figures.plain_reason = layer->plain_reason();
      figures.plain_bytes += key.bytes + value.bytes;
      continue;
    }
    varve_cells_stats stats;
    if (!layer->Stats(&stats)) continue;
    ++n_packed;
    figures.n_tokens += stats.n_tokens;
    for (size_t tier = 0; tier < figures.tier_tokens.size(); ++tier)
      figures.tier_tokens[tier] += stats.tier_tokens[tier];
    figures.packed_bytes += stats.packed_bytes;
    figures.payload_bytes += stats.payload_bytes;
    figures.f16_bytes += stats.f16_bytes;
    figures.n_demotions += stats.n_demotions;
    figures.n_promotions += stats.n_promotions;
    figures.layers_json += (n_packed == 1 ? "" : ", ") + LayerJson(layer->index(), stats);
    figures.append_seconds += stats.append_seconds;
    figures.retier_seconds += stats.retier_seconds;
    figures.attend_seconds += stats.attend_seconds;
  }
  if (n_packed > 0) {
    figures.n_tokens /= n_packed;
    for (int64_t& tokens : figures.tier_tokens) tokens /= n_packed;
  }
  return figures;
}

double Mib(uint64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0); }

void SayFigures(const CacheFigures& figures) {
  if (figures.n_layers == 0) return;
  const int n_packed = figures.n_layers - figures.n_plain;
  if (n_packed > 0 && figures.n_tokens > 0) {
    std::string tiers;
    for (size_t tier = 0; tier < kTierNames.size(); ++tier) {
      if (figures.tier_tokens[tier] == 0) continue;
      if (!tiers.empty()) tiers += " + ";
      tiers += std::to_string(figures.tier_tokens[tier]) + " " + kTierNames[tier];
    }
    Say("method %s, %d layers, %lld tokens (%s), %.2f MiB held, %.2f bits an element, f16 would "
        "hold %.2f MiB",
        figures.method.c_str(), n_packed, static_cast<long long>(figures.n_tokens), tiers.c_str(),
        Mib(figures.packed_bytes), figures.BitsPerElement(), Mib(figures.f16_bytes));
  }
  if (figures.n_plain > 0) {
    Say("%d layers not packed, %.2f MiB declared: %s", figures.n_plain, Mib(figures.plain_bytes),
        figures.plain_reason.c_str());
  }
}

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return quoted + "\"";
}

std::string FiguresJson(const CacheFigures& figures) {
  char text[1024];
  std::snprintf(
      text, sizeof(text),
      ", \"open\": %s, \"layers\": %d, \"plain_layers\": %d, \"cells\": %lld, \"streams\": %lld, "
      "\"tokens\": %lld, \"packed_bytes\": %llu, \"payload_bytes\": %llu, \"f16_bytes\": %llu, "
      "\"declared_bytes\": %llu, \"plain_bytes\": %llu, \"bits_per_element\": %.4f, \"demotions\": "
      "%llu, "
      "\"promotions\": %llu, \"append_seconds\": %.6f, \"retier_seconds\": %.6f, "
      "\"attend_seconds\": %.6f",
      figures.open ? "true" : "false", figures.n_layers, figures.n_plain,
      static_cast<long long>(figures.n_cells), static_cast<long long>(figures.n_streams),
      static_cast<long long>(figures.n_tokens),
      static_cast<unsigned long long>(figures.packed_bytes),
      static_cast<unsigned long long>(figures.payload_bytes),
      static_cast<unsigned long long>(figures.f16_bytes),
      static_cast<unsigned long long>(figures.declared_bytes),
      static_cast<unsigned long long>(figures.plain_bytes), figures.BitsPerElement(),
      static_cast<unsigned long long>(figures.n_demotions),
      static_cast<unsigned long long>(figures.n_promotions), figures.append_seconds,
      figures.retier_seconds, figures.attend_seconds);
  return std::string("{\"id\": ") + std::to_string(figures.id) +
         ", \"method\": " + Quoted(figures.method) + text +
         ", \"tier_tokens\": " + TierTokensJson(figures.tier_tokens.data()) +
         ", \"layer_figures\": [" + figures.layers_json +
         "], \"plain_reason\": " + Quoted(figures.plain_reason) + "}";
}

// Open buffers with a KV cache, then the closed ones. The caller holds the lock.
std::vector<CacheFigures> CollectAll(const State& state) {
  std::vector<CacheFigures> all;
  for (const KvBuffer* buffer : state.buffers) {
    if (!buffer->layers().empty()) all.push_back(Collect(*buffer));
  }
  all.insert(all.end(), state.closed.begin(), state.closed.end());
  return all;
}

std::string JsonLocked(const State& state) {
  std::string json = "{\"varve\": " + Quoted(varve_version()) +
                     ", \"method\": " + Quoted(GlobalSettings().Get("method")) +
                     ", \"kernels\": " + Quoted(varve_isa()) +
                     ", \"next_id\": " + std::to_string(NextBufferId()) + ", \"caches\": [";
  bool first = true;
  for (const CacheFigures& figures : CollectAll(state)) {
    json += (first ? "" : ", ") + FiguresJson(figures);
    first = false;
  }
  json += "], \"operations\": {";
  first = true;
  for (int op = 0; op < GGML_OP_COUNT; ++op) {
    const auto& counts = state.op_counts[static_cast<size_t>(op)];
    const uint64_t on_codes = counts[0];
    const uint64_t on_host_cpu = counts[1];
    if (on_codes + on_host_cpu == 0) continue;
    json += (first ? "" : ", ") + Quoted(ggml_op_name(static_cast<ggml_op>(op))) +
            ": {\"on_codes\": " + std::to_string(on_codes) +
            ", \"on_host_cpu\": " + std::to_string(on_host_cpu) + "}";
    first = false;
  }
  return json + "}}\n";
}

void WriteFileLocked(const State& state) {
  if (state.file_path.empty()) return;
  const std::string temporary = state.file_path + ".tmp";
  const std::string json = JsonLocked(state);
  std::FILE* file = std::fopen(temporary.c_str(), "w");
  bool written = file != nullptr && std::fwrite(json.data(), 1, json.size(), file) == json.size();
  if (file != nullptr) written = std::fclose(file) == 0 && written;
  if (!written || std::rename(temporary.c_str(), state.file_path.c_str()) != 0) {
    Say("cannot write VARVE_STATS_FILE=%s", state.file_path.c_str());
  }
}

void ReportNow() {
  State& state = Global();
  const std::lock_guard lock(state.mutex);
  for (const KvBuffer* buffer : state.buffers) SayFigures(Collect(*buffer));
  WriteFileLocked(state);
}

void OnSignal(int) {
  const int saved = errno;
  sem_post(&Global().wake);
  errno = saved;
}

void ReportForever() {
  State& state = Global();
  for (;;) {
    int result;
    if (state.period_seconds > 0) {
      timespec until;
      clock_gettime(CLOCK_REALTIME, &until);
      until.tv_sec += state.period_seconds;
      result = sem_timedwait(&state.wake, &until);
    } else {
      result = sem_wait(&state.wake);
    }
    if (result == 0 || errno == ETIMEDOUT) ReportNow();
  }
}

void AtExit() {
  State& state = Global();
  ReportNow();
  if (state.backend_created && !state.kv_seen) {
    Say("was loaded but held no KV cache: the host kept it on the CPU (-ngl 0, -nkvo, or another "
        "--device)");
  }
}

}  // namespace

void CountOp(ggml_op op, OpPath path) {
  Global().op_counts[static_cast<size_t>(op)][path == OpPath::kOnCodes ? 0 : 1].fetch_add(
      1, std::memory_order_relaxed);
}

void RegisterBuffer(KvBuffer* buffer) {
  State& state = Global();
  const std::lock_guard lock(state.mutex);
  state.buffers.push_back(buffer);
}

void UnregisterBuffer(KvBuffer* buffer) {
  State& state = Global();
  const std::lock_guard lock(state.mutex);
  state.buffers.erase(std::remove(state.buffers.begin(), state.buffers.end(), buffer),
                      state.buffers.end());
  if (buffer->layers().empty()) return;
  CacheFigures figures = Collect(*buffer);
  figures.open = false;
  SayFigures(figures);
  if (state.closed.size() == kClosedKept) state.closed.erase(state.closed.begin());
  state.closed.push_back(std::move(figures));
  WriteFileLocked(state);
}

void CountLayersOfModels() {
  State& state = Global();
  const std::lock_guard lock(state.mutex);
  std::map<int, std::vector<KvLayer*>> model;  // layers of one number may differ in their tag
  const auto close_model = [&] {
    for (const auto& [index, layers] : model) {
      for (KvLayer* layer : layers) layer->set_n_layers(model.rbegin()->first + 1);
    }
    model.clear();
  };
  for (const KvBuffer* buffer : state.buffers) {
    const auto& layers = buffer->layers();
    if (std::any_of(layers.begin(), layers.end(),
                    [&](const auto& layer) { return model.count(layer->index()) > 0; })) {
      close_model();
    }
    for (const auto& layer : layers) model[layer->index()].push_back(layer.get());
  }
  close_model();
}

void NoteBackendCreated() { Global().backend_created = true; }

void NoteKvSeen() { Global().kv_seen = true; }

void StartStatistics() {
  State& state = Global();
  if (sem_init(&state.wake, 0, 0) != 0) return;
  if (const char* path = std::getenv("VARVE_STATS_FILE")) state.file_path = path;
  if (const char* seconds = std::getenv("VARVE_STATS"); seconds != nullptr && *seconds != '\0') {
    char* end = nullptr;
    const long value = std::strtol(seconds, &end, 10);
    if (*end != '\0' || value < 1 || value > kMaxPeriodSeconds) {
      Say("VARVE_STATS=%s is ignored: it takes whole seconds, 1 to %d", seconds, kMaxPeriodSeconds);
    } else {
      state.period_seconds = static_cast<int>(value);
    }
  }
  std::atexit(AtExit);
  struct sigaction current = {};
  const bool free_signal = sigaction(SIGUSR1, nullptr, &current) == 0 &&
                           (current.sa_flags & SA_SIGINFO) == 0 && current.sa_handler == SIG_DFL;
  if (free_signal) {
    struct sigaction ours = {};
    ours.sa_handler = OnSignal;
    ours.sa_flags = SA_RESTART;
    sigemptyset(&ours.sa_mask);
    sigaction(SIGUSR1, &ours, nullptr);
  }
  if (!free_signal && state.period_seconds == 0) return;
  sigset_t all, before;  // the reporting thread takes none of the host's signals
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread(ReportForever).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

std::string StatisticsJson() {
  State& state = Global();
  const std::lock_guard lock(state.mutex);
  return JsonLocked(state);
}

}  // namespace varve::plugin
