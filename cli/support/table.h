// Plain text tables that stay within 100 columns.
#ifndef VARVE_CLI_SUPPORT_TABLE_H_
#define VARVE_CLI_SUPPORT_TABLE_H_

#include <string>
#include <vector>

namespace varve::cli {

inline constexpr size_t kMaxColumns = 100;

class Table {
 public:
  /// Headings; one that starts with '<' is left aligned (the sign is dropped), all others right.
  explicit Table(std::vector<std::string> headings);

  void AddRow(std::vector<std::string> cells);

  /// Lines end in '\n'. The widest left-aligned column is wrapped at spaces when a row would pass
  /// kMaxColumns.
  std::string ToString() const;

 private:
  std::vector<std::string> headings_;
  std::vector<bool> left_;
  std::vector<std::vector<std::string>> rows_;
};

/// Breaks text at spaces into lines of at most `width` columns (a longer word stands alone).
std::vector<std::string> WrapText(const std::string& text, size_t width);

/// Columns that a UTF-8 text takes, one a code point.
size_t DisplayWidth(const std::string& text);

}  // namespace varve::cli

#endif  // VARVE_CLI_SUPPORT_TABLE_H_
