#include "measure/lockstep.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "measure/quality.h"
#include "support/failure.h"
#include "support/parallel.h"

namespace varve::cli {
namespace {

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::vector<ChunkScores> RunChunk(llama_model* model, const std::vector<CacheSpec>& caches,
                                  Plugin* plugin, std::span<const llama_token> tokens,
                                  const LockstepOptions& options,
                                  const std::function<void(int)>& on_step) {
  const int n_tokens = static_cast<int>(tokens.size());
  const int n_threads = options.n_threads > 0 ? options.n_threads : DefaultThreads();
  const auto n_vocab = static_cast<size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model)));
  ContextOptions context_options;
  context_options.n_ctx = options.n_ctx;
  context_options.n_batch = options.step;
  context_options.n_threads = options.n_threads;
  std::vector<std::unique_ptr<CacheContext>> contexts;
  std::vector<ChunkScores> scores(caches.size());
  for (size_t c = 0; c < caches.size(); ++c) {
    contexts.push_back(std::make_unique<CacheContext>(model, caches[c], plugin, context_options));
    const auto n_predictions = static_cast<size_t>(n_tokens - 1);
    scores[c].kld.resize(n_predictions);
    scores[c].nll.resize(n_predictions);
    scores[c].same_top.resize(n_predictions);
  }
  std::vector<ReferenceRow> references(static_cast<size_t>(options.step));
  for (int first = 0; first < n_tokens; first += options.step) {
    const int n = std::min(options.step, n_tokens - first);
    // The text's last token has nothing to predict.
    const int n_scored = std::min(n, n_tokens - 1 - first);
    for (size_t c = 0; c < caches.size(); ++c) {
      const auto start = std::chrono::steady_clock::now();
      Decode(contexts[c]->get(), tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(n)),
             first, true);
      scores[c].seconds += SecondsSince(start);
      std::vector<const float*> rows(static_cast<size_t>(n_scored));
      for (int i = 0; i < n_scored; ++i)
        rows[static_cast<size_t>(i)] = llama_get_logits_ith(contexts[c]->get(), i);
      ParallelFor(n_scored, n_threads, [&](int i) {
        const auto row = static_cast<size_t>(i);
        const auto position = static_cast<size_t>(first + i);
        const std::span<const float> logits(rows[row], n_vocab);
        if (c == 0) references[row] = MakeReference(logits);
        const RowScore score = ScoreRow(references[row], logits, tokens[position + 1]);
        scores[c].kld[position] = c == 0 ? 0 : score.kld;
        scores[c].nll[position] = score.nll;
        scores[c].same_top[position] = score.same_top ? 1 : 0;
      });
    }
    on_step(first + n);
  }
  for (size_t c = 0; c < caches.size(); ++c) scores[c].layers = contexts[c]->Figures();
  return scores;
}

}  // namespace varve::cli
