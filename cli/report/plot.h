// Line and scatter plots as SVG text, with linear or logarithmic axes and labels that do not
// overlap.
#ifndef VARVE_CLI_REPORT_PLOT_H_
#define VARVE_CLI_REPORT_PLOT_H_

#include <string>
#include <utility>
#include <vector>

namespace varve::cli {

struct Series {
  std::string name;
  int style = 0;  ///< colour and marker; series of one cache have the same everywhere
  std::vector<std::pair<double, double>> points;
};

struct PlotOptions {
  std::string title;  ///< for readers that do not see the picture
  std::string x_label;
  std::string y_label;
  bool log_x = false;
  bool log_y = false;
  bool lines = true;  ///< join the points of a series; the x axis then ends where they do
  bool x_from_zero = false;
  bool label_points = false;  ///< write a series' name beside its first point where there is room
};

/// One SVG element of the given size in CSS pixels. Points that a logarithmic axis cannot show are
/// left out.
std::string PlotSvg(const std::vector<Series>& series, const PlotOptions& options, int width,
                    int height);

/// "s3": the class that the style sheet of the report colours.
std::string StyleClass(int style);
inline constexpr int kStyles = 10;

std::string EscapeHtml(const std::string& text);

}  // namespace varve::cli

#endif  // VARVE_CLI_REPORT_PLOT_H_
