#include "report/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <vector>

#include "report/plot.h"
#include "support/units.h"

namespace varve::cli {
namespace {

// Okabe and Ito's colours, which stay apart for colour-blind readers, and their lighter kin on a
// dark page.
constexpr const char* kStyleSheet = R"(
:root{--ink:#1b1f24;--soft:#57606a;--line:#d8dee4;--page:#fff;--band:#f6f8fa}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9aa4ae;--line:#30363d;--page:#0d1117;--band:#161b22}}
*{box-sizing:border-box}
body{margin:0 auto;padding:24px 20px 48px;max-width:900px;font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page)}
h1{font-size:1.5rem;line-height:1.25;margin:0 0 4px}
h2{font-size:1.15rem;margin:36px 0 4px}
p{margin:4px 0 10px;color:var(--soft);overflow-wrap:anywhere}
p strong{color:var(--ink)}
svg{display:block;max-width:100%;height:auto}
svg text{font:12px system-ui,sans-serif;fill:var(--ink)}
.narrow{display:none}
@media(max-width:640px){.wide{display:none}.narrow{display:block}body{padding:16px 12px 32px}}
.grid{stroke:var(--line);stroke-width:1;fill:none}
.l{fill:none;stroke:var(--c);stroke-width:2}
.m{fill:var(--c);stroke:var(--page);stroke-width:1}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;margin:6px 0 0;padding:0;list-style:none;font-size:.85rem}
.legend li{display:flex;align-items:center;gap:6px;overflow-wrap:anywhere}
.chip{width:14px;height:14px;border-radius:3px;background:var(--c);flex:none}
.s0{--c:#6e7781}.s1{--c:#0072b2}.s2{--c:#d55e00}.s3{--c:#009e73}.s4{--c:#cc79a7}
.s5{--c:#b8860b}.s6{--c:#56b4e9}.s7{--c:#8250df}.s8{--c:#a04000}.s9{--c:#1a7f37}
@media(prefers-color-scheme:dark){.s0{--c:#9aa4ae}.s1{--c:#4aa3df}.s2{--c:#f0813c}.s7{--c:#a371f7}.s8{--c:#d98247}.s9{--c:#3fb950}}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:6px}
table{border-collapse:separate;border-spacing:0;width:100%;font-size:.85rem;font-variant-numeric:tabular-nums}
th,td{padding:6px 10px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}
th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:var(--page)}
thead th{background:var(--band);vertical-align:bottom}
thead th:first-child{background:var(--band)}
tbody tr:last-child td{border-bottom:0}
td small{display:block;color:var(--soft);line-height:1.2}
td{vertical-align:top}
.tiers{display:grid;grid-template-columns:minmax(80px,auto) 1fr;gap:8px 12px;align-items:center;font-size:.85rem}
.tiers span{overflow-wrap:anywhere}
.bar{display:flex;height:26px;border-radius:4px;overflow:hidden;border:1px solid var(--line)}
.bar i{font-style:normal;overflow:hidden;white-space:nowrap;text-align:center;color:#fff;line-height:24px;min-width:2px}
.t0{background:#0072b2}.t1{background:#007a5a}.t2{background:#7a4a00}.t3{background:#57606a}
@media print{body{max-width:none;padding:0}section,.tiers,.scroll{break-inside:avoid}.scroll{overflow:visible}table{font-size:.7rem}th,td{padding:3px 4px}}
figure{margin:8px 0 0}
)";

constexpr std::array<const char*, 4> kTiers = {"recent", "mid", "old", "sinks, exact"};

std::string Legend(const std::vector<Series>& series) {
  std::string html = "<ul class=\"legend\">";
  for (const Series& one : series) {
    html += fmt::format("<li><span class=\"chip {}\"></span>{}</li>", StyleClass(one.style),
                        EscapeHtml(one.name));
  }
  return html + "</ul>";
}

/// A heading, a sentence, and the plot in two widths of which the style sheet shows one.
std::string Section(const std::string& heading, const std::string& sentence,
                    const std::vector<Series>& series, const PlotOptions& options) {
  return fmt::format(
      "<section><h2>{}</h2>\n<p>{}</p>\n<figure><div class=\"wide\">{}</div><div "
      "class=\"narrow\">{}</div>{}</figure></section>\n",
      EscapeHtml(heading), EscapeHtml(sentence), PlotSvg(series, options, 860, 340),
      PlotSvg(series, options, 336, 280), Legend(series));
}

std::vector<Series> EmptySeries(const Json& result) {
  std::vector<Series> series;
  for (const Json& row : result.at("methods")) {
    series.push_back({row.at("name"), static_cast<int>(series.size()), {}});
  }
  return series;
}

std::string QualityAgainstBits(const Json& result) {
  std::vector<Series> series = EmptySeries(result);
  for (size_t i = 0; i < series.size(); ++i) {
    const Json& row = result.at("methods").at(i);
    series[i].points = {{row.at("bits_per_element"), row.at("kld").at("mean")}};
  }
  std::erase_if(series, [](const Series& s) { return s.points.front().second <= 0; });
  PlotOptions options;
  options.title = "Quality against bits";
  options.x_label = "bits an element, all included";
  options.y_label = "mean KLD to f16";
  options.log_y = true;
  options.lines = false;
  options.label_points = true;
  return Section("Quality against bits",
                 "Lower and further left is better. Bits are the bytes really held.", series,
                 options);
}

std::string ErrorAgainstPosition(const Json& result) {
  std::vector<Series> series = EmptySeries(result);
  for (size_t i = 0; i < series.size(); ++i) {
    for (const Json& point : result.at("methods").at(i).at("kld_by_position")) {
      series[i].points.emplace_back(point.at("position"), point.at("kld"));
    }
  }
  std::erase_if(series, [](const Series& s) {
    return std::none_of(s.points.begin(), s.points.end(),
                        [](const auto& p) { return p.second > 0; });
  });
  PlotOptions options;
  options.title = "Error against position";
  options.x_label = "position in the context";
  options.y_label = "mean KLD to f16";
  options.log_y = true;
  return Section("Error against position", "How the error grows as more of the context is old.",
                 series, options);
}

std::string ErrorByLayer(const Json& result) {
  std::vector<Series> series = EmptySeries(result);
  for (size_t i = 0; i < series.size(); ++i) {
    const Json& errors = result.at("methods").at(i).at("errors");
    if (errors.is_null()) return "";
    for (const Json& layer : errors.at("layers"))
      series[i].points.emplace_back(layer.at("layer"), layer.at("output"));
  }
  PlotOptions options;
  options.title = "Attention output error by layer";
  options.x_label = "layer";
  options.y_label = "relative error of the attention output";
  options.log_y = true;
  return Section("Error by layer",
                 "Keys, values and queries are the same for all caches, so layers can be compared "
                 "with each other.",
                 series, options);
}

std::string MemoryAgainstContext(const Json& result) {
  std::vector<Series> series = EmptySeries(result);
  const Json& reference = result.at("methods").front().at("memory_by_context");
  const bool large = reference.back().at("bytes") >= (uint64_t{1} << 30);
  const double unit = large ? 1024.0 * 1024 * 1024 : 1024.0 * 1024;
  for (size_t i = 0; i < series.size(); ++i) {
    for (const Json& point : result.at("methods").at(i).at("memory_by_context"))
      series[i].points.emplace_back(point.at("n_ctx"), point.at("bytes").get<double>() / unit);
  }
  PlotOptions options;
  options.title = "Memory against context";
  options.x_label = "context, tokens";
  options.y_label = large ? "KV cache, GiB" : "KV cache, MiB";
  options.x_from_zero = true;
  return Section("Memory against context",
                 "What a full context of this model takes, from the shapes of its layers and the "
                 "widths measured here.",
                 series, options);
}

/// Tokens a tier as a bar, oldest left; the mean over layers that hold the most tokens.
std::string TierPicture(const Json& result) {
  std::string rows;
  for (const Json& method : result.at("methods")) {
    if (method.at("layers").empty()) continue;
    std::array<double, 4> tokens{};
    double total = 0;
    for (const Json& layer : method.at("layers")) {
      for (size_t tier = 0; tier < tokens.size(); ++tier) {
        tokens[tier] += layer.at("tier_tokens").at(tier).get<double>();
        total += layer.at("tier_tokens").at(tier).get<double>();
      }
    }
    if (total <= 0) continue;
    rows += fmt::format("<span>{}</span><div class=\"bar\">", EscapeHtml(method.at("name")));
    for (size_t tier : {size_t{3}, size_t{2}, size_t{1}, size_t{0}}) {
      if (tokens[tier] <= 0) continue;
      const double share = 100 * tokens[tier] / total;
      rows += fmt::format(
          "<i class=\"t{}\" style=\"width:{:.2f}%\" title=\"{}: {:.1f} % of the tokens\">{}</i>",
          tier, share, kTiers[tier], share, share >= 15 ? fmt::format("{:.0f} %", share) : "");
    }
    rows += "</div>";
  }
  if (rows.empty()) return "";
  std::string legend = "<ul class=\"legend\">";
  for (size_t tier : {size_t{3}, size_t{2}, size_t{1}, size_t{0}}) {
    legend += fmt::format("<li><span class=\"chip t{}\"></span>{}</li>", tier, kTiers[tier]);
  }
  return "<section><h2>The cache at the end</h2>\n<p>Share of the tokens in each tier, oldest at "
         "the left, "
         "all layers together.</p>\n"
         "<figure><div class=\"tiers\">" +
         rows + "</div>" + legend + "</ul></figure></section>\n";
}

std::string PlusMinus(const std::string& value, const std::string& half) {
  return fmt::format("{} <small>±{}</small>", value, half);
}

std::string Fixed(const Json& value, int digits) {
  return fmt::format("{:.{}f}", value.get<double>(), digits);
}

std::string MakeTable(const std::vector<std::string>& headings,
                      const std::vector<std::vector<std::string>>& rows) {
  std::string html = "<div class=\"scroll\"><table><thead><tr>";
  for (const std::string& heading : headings) html += "<th>" + heading;
  html += "</tr></thead><tbody>\n";
  for (const auto& row : rows) {
    html += "<tr>";
    for (const std::string& cell : row) html += "<td>" + cell;
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

std::string QualityTable(const Json& result) {
  std::vector<std::vector<std::string>> rows;
  for (const Json& row : result.at("methods")) {
    const Json& kld = row.at("kld");
    const Json& top = row.at("same_top");
    const Json& perplexity = row.at("perplexity");
    const Json& ratio = row.at("perplexity_ratio");
    const auto half = [](const Json& interval, double scale) {
      return fmt::format(
          "{:.2f}",
          scale * (interval.at("high").get<double>() - interval.at("low").get<double>()) / 2);
    };
    std::vector<std::string> cells = {EscapeHtml(row.at("name")),
                                      Fixed(row.at("bits_per_element"), 2),
                                      FormatBytes(row.at("bytes"))};
    const std::string value = PlusMinus(Fixed(perplexity.at("value"), 2), half(perplexity, 1));
    if (row.at("reference")) {
      cells.insert(cells.end(), {"-", "-", "-", "-", value, "-"});
    } else {
      const double excess = 100 * (ratio.at("value").get<double>() - 1);
      cells.insert(cells.end(),
                   {PlusMinus(Fixed(kld.at("mean"), 4), Fixed(kld.at("half_width_95"), 4)),
                    Fixed(kld.at("median"), 4), Fixed(kld.at("p99"), 3),
                    PlusMinus(fmt::format("{:.1f} %", 100 * top.at("share").get<double>()),
                              fmt::format("{:.1f}", 100 * top.at("half_width_95").get<double>())),
                    value, PlusMinus(fmt::format("{:+.2f} %", excess), half(ratio, 100))});
    }
    rows.push_back(cells);
  }
  return MakeTable({"cache", "bits", "held", "KLD mean", "KLD median", "KLD p99", "same top",
                    "perplexity", "to f16"},
                   rows);
}

std::string CostTable(const Json& result) {
  std::vector<std::vector<std::string>> rows;
  for (const Json& row : result.at("methods")) {
    std::vector<std::string> cells = {EscapeHtml(row.at("name"))};
    for (const char* key : {"k", "v", "output"}) {
      cells.push_back(row.at("errors").is_null() ? "-" : Fixed(row.at("errors").at(key), 4));
    }
    for (const char* key : {"prefill_tokens_per_second", "decode_tokens_per_second"}) {
      cells.push_back(row.at("speed").is_null() ? "-" : Fixed(row.at("speed").at(key), 1));
    }
    rows.push_back(cells);
  }
  return MakeTable({"cache", "K error", "V error", "output error", "prefill tok/s", "decode tok/s"},
                   rows);
}

std::string NumbersTables(const Json& result) {
  return "<section><h2>All numbers</h2>\n<p>± is a 95 % interval that allows for neighbouring "
         "tokens being "
         "alike. Errors are "
         "relative to the exact values.</p>\n" +
         QualityTable(result) + "<p></p>\n" + CostTable(result) + "</section>\n";
}

/// The one sentence to take home: the smallest cache that loses least.
std::string Finding(const Json& result) {
  const Json* q4 = nullptr;
  const Json* best = nullptr;
  for (const Json& row : result.at("methods")) {
    if (row.at("name") == "q4_0") q4 = &row;
  }
  for (const Json& row : result.at("methods")) {
    if (!q4 || row.at("stock") || row.at("kld").at("mean") > q4->at("kld").at("mean")) continue;
    if (!best || row.at("bytes") < best->at("bytes")) best = &row;
  }
  if (!best) return "";
  return fmt::format(
      "<p><strong>{}</strong> holds {:.2f} bits an element (q4_0: {:.2f}) with a mean KLD of "
      "{:.4f} (q4_0: {:.4f}).</p>\n",
      EscapeHtml(best->at("name")), best->at("bits_per_element").get<double>(),
      q4->at("bits_per_element").get<double>(), best->at("kld").at("mean").get<double>(),
      q4->at("kld").at("mean").get<double>());
}

}  // namespace

std::string MakeHtmlReport(const Json& result) {
  const std::string model =
      std::filesystem::path(result.at("model").at("path").get<std::string>()).filename().string();
  const std::string text =
      std::filesystem::path(result.at("text").get<std::string>()).filename().string();
  std::string html = fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>KV caches "
      "of {}</title>\n<style>{}</style>\n"
      "</head>\n<body>\n<h1>KV caches of {}</h1>\n",
      EscapeHtml(model), kStyleSheet, EscapeHtml(model));
  html += fmt::format(
      "<p>{}. Text {}: {} chunk{} of {} tokens, decoded {} at a time beside an f16 cache; {} "
      "predictions "
      "scored, from position {} on. varve {}.</p>\n",
      EscapeHtml(result.at("model").at("description")), EscapeHtml(text),
      result.at("n_chunks").get<int>(), result.at("n_chunks") == 1 ? "" : "s",
      result.at("n_ctx").get<int>(), result.at("step").get<int>(),
      result.at("methods").front().at("n_scored").get<int>(), result.at("score_from").get<int>(),
      result.at("varve_version").get<std::string>());
  html += Finding(result);
  html += QualityAgainstBits(result) + ErrorAgainstPosition(result) + ErrorByLayer(result) +
          MemoryAgainstContext(result) + TierPicture(result) + NumbersTables(result);
  return html + "</body>\n</html>\n";
}

}  // namespace varve::cli
