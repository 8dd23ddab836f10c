#include "measure/quality.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace varve::cli {
namespace {

/// Two-sided 95 % quantile of Student's t; the normal one past 30 degrees of freedom.
double StudentT95(size_t degrees) {
  static constexpr std::array<double, 31> kTable = {
      0,     12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
      2.201, 2.179,  2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080,
      2.074, 2.069,  2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};
  return degrees < kTable.size() ? kTable[degrees] : 1.960;
}

double Mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// t * standard error of the mean of independent values.
double HalfWidth(std::span<const double> values) {
  if (values.size() < 2) return 0;
  const double mean = Mean(values);
  double squares = 0;
  for (double value : values) squares += (value - mean) * (value - mean);
  const double n = static_cast<double>(values.size());
  return StudentT95(values.size() - 1) * std::sqrt(squares / (n - 1) / n);
}

}  // namespace

ReferenceRow MakeReference(std::span<const float> logits) {
  ReferenceRow row;
  const auto top = std::max_element(logits.begin(), logits.end());
  row.top = static_cast<int>(top - logits.begin());
  row.probabilities.resize(logits.size());
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    row.probabilities[i] = std::exp(static_cast<double>(logits[i]) - *top);
    sum += row.probabilities[i];
  }
  row.log_sum = std::log(sum) + *top;
  for (size_t i = 0; i < logits.size(); ++i) {
    row.probabilities[i] /= sum;
    row.negative_entropy += row.probabilities[i] * (logits[i] - row.log_sum);
  }
  return row;
}

RowScore ScoreRow(const ReferenceRow& reference, std::span<const float> logits, int next_token) {
  const auto top = std::max_element(logits.begin(), logits.end());
  double sum = 0;
  double expected_logit = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    sum += std::exp(static_cast<double>(logits[i]) - *top);
    expected_logit += reference.probabilities[i] * logits[i];
  }
  const double log_sum = std::log(sum) + *top;
  RowScore score;
  score.kld = reference.negative_entropy - (expected_logit - log_sum);
  score.nll = log_sum - logits[static_cast<size_t>(next_token)];
  score.same_top = static_cast<int>(top - logits.begin()) == reference.top;
  return score;
}

Interval MeanInterval(std::span<const double> values) {
  if (values.empty()) return {};
  const size_t run = std::clamp<size_t>(values.size() / 16, 1, kLongestRun);
  std::vector<double> runs;
  for (size_t begin = 0; begin + run <= values.size(); begin += run) {
    runs.push_back(Mean(values.subspan(begin, run)));
  }
  return {Mean(values), HalfWidth(runs)};
}

double Quantile(std::span<const double> values, double share) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace varve::cli
