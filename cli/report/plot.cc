#include "report/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace varve::cli {
namespace {

constexpr int kFontSize = 12;
constexpr double kCharWidth =
    0.58 * kFontSize;  // of the widest common sans-serif faces, rounded up
constexpr int kMarginTop = 26;
constexpr int kMarginRight = 14;
constexpr int kMarginBottom = 44;

struct Box {
  double left, top, right, bottom;
  bool Overlaps(const Box& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
};

/// A value axis: maps [low, high] to pixels, and its ticks.
class Axis {
 public:
  /// A tight axis ends where the values do, others at the next tick.
  Axis(std::vector<double> values, bool log, bool from_zero, bool tight) : log_(log) {
    std::erase_if(values, [log](double v) { return !std::isfinite(v) || (log && v <= 0); });
    if (values.empty()) values = {log ? 0.1 : 0.0, 1.0};
    low_ = *std::min_element(values.begin(), values.end());
    high_ = *std::max_element(values.begin(), values.end());
    if (from_zero && !log) low_ = std::min(low_, 0.0);
    if (log) {
      low_ = std::pow(10, std::floor(std::log10(low_) + 1e-9));
      high_ = std::pow(10, std::ceil(std::log10(high_) - 1e-9));
      if (high_ <= low_) high_ = 10 * low_;
    } else {
      const double step = LinearStep();
      if (!tight) {
        low_ = std::floor(low_ / step + 1e-9) * step;
        high_ = std::ceil(high_ / step - 1e-9) * step;
      }
      if (high_ <= low_) high_ = low_ + step;
    }
  }

  bool Shows(double value) const { return std::isfinite(value) && (!log_ || value > 0); }

  /// 0 at the low end, 1 at the high one.
  double Place(double value) const {
    return log_ ? std::log(value / low_) / std::log(high_ / low_) : (value - low_) / (high_ - low_);
  }

  std::vector<double> Ticks() const {
    std::vector<double> ticks;
    if (log_) {
      const bool few_decades = high_ / low_ < 1001;
      for (double decade = low_; decade < high_ * 1.0001; decade *= 10) {
        for (double factor : {1.0, 2.0, 5.0}) {
          const bool shown = factor == 1.0 || few_decades;
          if (shown && decade * factor < high_ * 1.0001) ticks.push_back(decade * factor);
        }
      }
    } else {
      const double step = LinearStep();
      const double first = std::ceil(low_ / step - 1e-9) * step + 0.0;  // never "-0"
      for (double tick = first; tick < high_ + step * 1e-6; tick += step) ticks.push_back(tick);
    }
    return ticks;
  }

 private:
  double LinearStep() const {
    const double span = std::max(high_ - low_, std::max(std::abs(high_), 1e-9) * 1e-3);
    const double rough = span / 5;
    const double power = std::pow(10, std::floor(std::log10(rough)));
    for (double factor : {1.0, 2.0, 2.5, 5.0}) {
      if (factor * power >= rough) return factor * power;
    }
    return 10 * power;
  }

  bool log_;
  double low_ = 0;
  double high_ = 1;
};

std::string TickText(double value) {
  if (value != 0 && std::abs(value) < 1e-4) return fmt::format("{:.0e}", value);
  return fmt::format("{:g}", value);
}

std::string Marker(int style, double x, double y) {
  const std::string css = StyleClass(style);
  switch (style % 3) {
    case 0:
      return fmt::format("<circle class=\"m {}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\"/>", css, x, y);
    case 1:
      return fmt::format(
          "<rect class=\"m {}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"8\" height=\"8\"/>", css, x - 4,
          y - 4);
    default:
      return fmt::format("<path class=\"m {}\" d=\"M{:.1f} {:.1f}l5 9h-10z\"/>", css, x, y - 6);
  }
}

std::string Text(double x, double y, const char* anchor, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>", x, y, anchor,
                     EscapeHtml(text));
}

/// Places names beside points: tries the sides in turn and leaves out what has no room.
class Labels {
 public:
  explicit Labels(Box inside) : inside_(inside) {}

  void Block(double x, double y) { taken_.push_back({x - 6, y - 6, x + 6, y + 6}); }

  std::string Add(double x, double y, const std::string& name) {
    const double width = kCharWidth * static_cast<double>(name.size());
    struct Side {
      double dx, dy;
      const char* anchor;
    };
    for (const Side& side :
         {Side{9, 4, "start"}, Side{-9, 4, "end"}, Side{0, -10, "middle"}, Side{0, 20, "middle"},
          Side{9, -9, "start"}, Side{9, 18, "start"}, Side{-9, -9, "end"}, Side{-9, 18, "end"}}) {
      const double left = side.anchor[0] == 's'   ? x + side.dx
                          : side.anchor[0] == 'e' ? x + side.dx - width
                                                  : x - width / 2;
      const Box box{left, y + side.dy - kFontSize, left + width, y + side.dy + 3};
      const bool inside = box.left >= inside_.left && box.right <= inside_.right &&
                          box.top >= inside_.top && box.bottom <= inside_.bottom;
      if (!inside || std::any_of(taken_.begin(), taken_.end(),
                                 [&](const Box& other) { return other.Overlaps(box); })) {
        continue;
      }
      taken_.push_back(box);
      return Text(x + side.dx, y + side.dy, side.anchor, name);
    }
    return "";
  }

 private:
  Box inside_;
  std::vector<Box> taken_;
};

}  // namespace

std::string StyleClass(int style) { return fmt::format("s{}", style % kStyles); }

std::string EscapeHtml(const std::string& text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string PlotSvg(const std::vector<Series>& series, const PlotOptions& options, int width,
                    int height) {
  std::vector<double> xs;
  std::vector<double> ys;
  for (const Series& one : series) {
    for (const auto& [x, y] : one.points) {
      xs.push_back(x);
      ys.push_back(y);
    }
  }
  const Axis x_axis(xs, options.log_x, options.x_from_zero, options.lines);
  const Axis y_axis(ys, options.log_y, true, false);
  size_t longest_tick = 0;
  for (double tick : y_axis.Ticks()) longest_tick = std::max(longest_tick, TickText(tick).size());
  const double left = 14 + kCharWidth * static_cast<double>(longest_tick);
  const double right = width - kMarginRight;
  const double bottom = height - kMarginBottom;
  const auto px = [&](double x) { return left + x_axis.Place(x) * (right - left); };
  const auto py = [&](double y) { return bottom - y_axis.Place(y) * (bottom - kMarginTop); };

  std::string svg = fmt::format(
      "<svg viewBox=\"0 0 {} {}\" width=\"{}\" height=\"{}\" role=\"img\" aria-label=\"{}\">",
      width, height, width, height, EscapeHtml(options.title));
  for (double tick : y_axis.Ticks()) {
    svg += fmt::format("<path class=\"grid\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>", left, py(tick), right);
    svg += Text(left - 6, py(tick) + 4, "end", TickText(tick));
  }
  double free_from = -1e9;
  for (double tick : x_axis.Ticks()) {
    const std::string text = TickText(tick);
    const double half = kCharWidth * static_cast<double>(text.size()) / 2;
    svg +=
        fmt::format("<path class=\"grid\" d=\"M{:.1f} {:.1f}V{}\"/>", px(tick), bottom, kMarginTop);
    if (px(tick) - half < free_from || px(tick) + half > width) continue;
    svg += Text(px(tick), bottom + 17, "middle", text);
    free_from = px(tick) + half + 6;
  }
  svg += Text((left + right) / 2, height - 8, "middle", options.x_label);
  svg += Text(4, 14, "start", options.y_label);

  Labels labels({left, kMarginTop - 4.0, right, bottom});
  for (const Series& one : series) {
    for (const auto& [x, y] : one.points) {
      if (x_axis.Shows(x) && y_axis.Shows(y)) labels.Block(px(x), py(y));
    }
  }
  for (const Series& one : series) {
    std::string path;
    std::string markers;
    bool labelled = !options.label_points;
    for (const auto& [x, y] : one.points) {
      if (!x_axis.Shows(x) || !y_axis.Shows(y)) continue;
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", px(x), py(y));
      if (!options.lines || one.points.size() <= 12) markers += Marker(one.style, px(x), py(y));
      if (!labelled) {
        markers += labels.Add(px(x), py(y), one.name);
        labelled = true;
      }
    }
    if (options.lines && !path.empty())
      svg += fmt::format("<path class=\"l {}\" d=\"{}\"/>", StyleClass(one.style), path);
    svg += markers;
  }
  return svg + "</svg>";
}

}  // namespace varve::cli
