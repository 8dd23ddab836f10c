#include "measure/key_bits.h"

#include <algorithm>
#include <span>
#include <string>

#include "llm/model.h"

namespace varve::cli {
namespace {

constexpr int kBatch = 64;
constexpr int kRecentTokens = 128;

constexpr const char* kPassage =
    "Each spring the melting snow carries sand and gravel down into the lake, and each winter, "
    "when "
    "the water lies still under the ice, the finest clay sinks slowly to the bottom. One light "
    "band "
    "and one dark band make a year. A core of mud two metres long may hold four thousand of them, "
    "and whoever counts them from the top can say in which summer a forest burned or a volcano far "
    "away threw its ash into the sky. The upper bands are soft and as thick as a finger. Deeper "
    "down "
    "they have been pressed by the weight of all that came after, until a whole century fits into "
    "the width of a hand. Nothing has been lost but water: the order of the years is still there, "
    "and so are the seeds, the pollen grains and the wing cases of beetles. In 1912 Gerard De Geer "
    "showed how to join the counts of many lakes into one calendar, which reached back to the end "
    "of "
    "the last ice age. His students measured thousands of profiles with strips of paper, compared "
    "them by eye, and argued about missing years. Today the cores are scanned with X-rays, and a "
    "program looks for the best match; yet every winter somebody still goes out onto the ice with "
    "a "
    "drill, a sledge and a thermos of coffee, because no calculation can replace the mud itself.\n";

/// The first kKeyBitsTokens tokens of the text, said again if need be.
std::vector<llama_token> FirstTokens(const llama_model* model, const std::string& text) {
  std::vector<llama_token> tokens = Tokenize(model, text, true);
  const std::vector<llama_token> again = Tokenize(model, text, false);
  while (tokens.size() < kKeyBitsTokens) tokens.insert(tokens.end(), again.begin(), again.end());
  tokens.resize(kKeyBitsTokens);
  return tokens;
}

/// The cache with its first boundary near enough for the passage.
CacheSpec WithNearBoundary(const CacheSpec& cache) {
  std::vector<std::string> sets;
  if (cache.method == "age_tiered" &&
      std::stoll(ConfigValue(cache.config.get(), "age_recent_boundary")) > kRecentTokens) {
    sets.push_back("age_recent_boundary=" + std::to_string(kRecentTokens));
  }
  return WithSettings(cache, sets);
}

}  // namespace

KeyBits KeyBitsOf(const std::vector<LayerFigures>& layers) {
  KeyBits bits;
  for (const LayerFigures& layer : layers) bits[layer.layer] = layer.last_key_bits;
  return bits;
}

KeyBits MeasureKeyBits(llama_model* model, const CacheSpec& cache, Plugin& plugin,
                       const std::string& text, int n_threads,
                       const std::function<void(int)>& on_step) {
  const std::vector<llama_token> tokens = FirstTokens(model, text.empty() ? kPassage : text);
  ContextOptions options;
  options.n_ctx = kKeyBitsTokens;
  options.n_batch = kBatch;
  options.n_threads = n_threads;
  const CacheContext context(model, WithNearBoundary(cache), &plugin, options);
  for (int first = 0; first < kKeyBitsTokens; first += kBatch) {
    Decode(context.get(), std::span(tokens).subspan(static_cast<size_t>(first), kBatch), first,
           false);
    on_step(first + kBatch);
  }
  return KeyBitsOf(context.Figures());
}

}  // namespace varve::cli
