// How far a next-token distribution is from the reference's, and what the numbers are worth.
#ifndef VARVE_CLI_MEASURE_QUALITY_H_
#define VARVE_CLI_MEASURE_QUALITY_H_

#include <span>
#include <vector>

namespace varve::cli {

/// The reference's distribution at one position.
struct ReferenceRow {
  std::vector<double> probabilities;  ///< [n_vocab]
  double negative_entropy = 0;        ///< sum of p log p
  double log_sum = 0;                 ///< log of the sum of exp(logit)
  int top = 0;                        ///< most likely token
};

/// softmax in double precision.
ReferenceRow MakeReference(std::span<const float> logits);

struct RowScore {
  double kld = 0;  ///< sum over tokens of p (log p - log q), p the reference; >= 0 up to rounding
  double nll = 0;  ///< -log q of the text's next token
  bool same_top = false;
};

RowScore ScoreRow(const ReferenceRow& reference, std::span<const float> logits, int next_token);

/// Mean with the half width of its 95 % interval.
struct Interval {
  double mean = 0;
  double half_width = 0;
};

/// Interval of the mean of a series whose neighbours are alike: by the means of runs of values
/// (Student's t over the runs). A run is a sixteenth of the series, at most kLongestRun values.
Interval MeanInterval(std::span<const double> values);
inline constexpr size_t kLongestRun = 32;

/// Sorted copy's value at `share` (0..1), linear between neighbours. values must not be empty.
double Quantile(std::span<const double> values, double share);

}  // namespace varve::cli

#endif  // VARVE_CLI_MEASURE_QUALITY_H_
