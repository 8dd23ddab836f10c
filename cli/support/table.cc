#include "support/table.h"

#include <algorithm>
#include <numeric>
#include <sstream>

namespace varve::cli {
namespace {

constexpr size_t kGap = 2;
constexpr size_t kMinWrappedWidth = 16;

std::string Pad(const std::string& text, size_t width, bool left) {
  const std::string blanks(width - std::min(width, DisplayWidth(text)), ' ');
  return left ? text + blanks : blanks + text;
}

}  // namespace

size_t DisplayWidth(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::vector<std::string> WrapText(const std::string& text, size_t width) {
  std::vector<std::string> lines;
  std::istringstream words(text);
  std::string line;
  for (std::string word; words >> word;) {
    if (!line.empty() && DisplayWidth(line) + 1 + DisplayWidth(word) > width) {
      lines.push_back(line);
      line.clear();
    }
    line += line.empty() ? word : " " + word;
  }
  if (!line.empty() || lines.empty()) lines.push_back(line);
  return lines;
}

Table::Table(std::vector<std::string> headings) : headings_(std::move(headings)) {
  for (std::string& heading : headings_) {
    left_.push_back(!heading.empty() && heading[0] == '<');
    if (left_.back()) heading.erase(0, 1);
  }
}

void Table::AddRow(std::vector<std::string> cells) {
  cells.resize(headings_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::ToString() const {
  std::vector<size_t> widths(headings_.size());
  for (size_t c = 0; c < widths.size(); ++c) {
    widths[c] = DisplayWidth(headings_[c]);
    for (const auto& row : rows_) widths[c] = std::max(widths[c], DisplayWidth(row[c]));
  }
  const size_t total = std::accumulate(widths.begin(), widths.end(), kGap * (widths.size() - 1));
  size_t wrapped = widths.size();
  if (total > kMaxColumns) {
    for (size_t c = 0; c < widths.size(); ++c) {
      if (left_[c] && (wrapped == widths.size() || widths[c] > widths[wrapped])) wrapped = c;
    }
    if (wrapped < widths.size()) {
      const size_t others = total - widths[wrapped];
      widths[wrapped] = std::max(kMinWrappedWidth, kMaxColumns - std::min(kMaxColumns, others));
    }
  }

  std::string out;
  const auto add_line = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (size_t c = 0; c < cells.size(); ++c) {
      if (c > 0) line.append(kGap, ' ');
      line += Pad(cells[c], widths[c], left_[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  };
  add_line(headings_);
  std::vector<std::string> rules;
  rules.reserve(widths.size());
  for (size_t width : widths) rules.emplace_back(width, '-');
  add_line(rules);
  for (const auto& row : rows_) {
    if (wrapped == widths.size()) {
      add_line(row);
      continue;
    }
    const std::vector<std::string> lines = WrapText(row[wrapped], widths[wrapped]);
    for (size_t i = 0; i < lines.size(); ++i) {
      std::vector<std::string> cells = i == 0 ? row : std::vector<std::string>(row.size());
      cells[wrapped] = lines[i];
      add_line(cells);
    }
  }
  return out;
}

}  // namespace varve::cli
