"""A small SVG writer: lines over two logarithmic axes, labelled at their ends. Standard library only."""

import math
from xml.sax.saxutils import escape

# Told apart without colour vision as well (Okabe and Ito's set); ours is drawn heavier.
COLORS = ["#0072b2", "#999999", "#e69f00", "#cc79a7", "#56b4e9", "#009e73"]
WIDTH, HEIGHT = 720, 440
LEFT, RIGHT, TOP, BOTTOM = 78, 132, 52, 58


def nice_number(value):
    """1024 -> 1k, 0.05 -> 0.05"""
    if value >= 1024 and value % 1024 == 0:
        return f"{value // 1024:g}k"
    return f"{value:g}"


def ticks(low, high):
    """Powers of ten, with 2 and 5 between when there are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1,) if last - first > 3 else (1, 2, 5)
    values = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    return [value for value in values if low * 0.999 <= value <= high * 1.001]


def spread(positions, gap):
    """Moves label positions apart, so that none lies on another; order kept."""
    order = sorted(range(len(positions)), key=positions.__getitem__)
    placed = list(positions)
    for _ in range(200):
        moved = False
        for a, b in zip(order, order[1:]):
            lack = gap - (placed[b] - placed[a])
            if lack > 1e-6:
                placed[a] -= lack / 2
                placed[b] += lack / 2
                moved = True
        if not moved:
            break
    return placed


def line_chart(title, x_label, y_label, series, heavy=()):
    """series: {name: [(x, y), ...]}, all positive; the names in `heavy` are drawn heavier. Returns SVG text."""
    series = {name: sorted(points) for name, points in series.items() if points}
    if not series:
        raise ValueError("a chart needs at least one point")
    xs = sorted({x for points in series.values() for x, _ in points})
    ys = [y for points in series.values() for _, y in points]
    x_low, x_high = xs[0], max(xs[-1], xs[0] * 2)
    y_low, y_high = min(ys) / 1.25, max(ys) * 1.25
    plot_w, plot_h = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def px(x):
        return LEFT + plot_w * math.log(x / x_low) / math.log(x_high / x_low)

    def py(y):
        return TOP + plot_h * (1 - math.log(y / y_low) / math.log(y_high / y_low))

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="13" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="26" font-size="16" font-weight="bold" fill="#222222">{escape(title)}</text>',
    ]
    for y in ticks(y_low, y_high):
        out.append(
            f'<line x1="{LEFT}" x2="{LEFT + plot_w}" y1="{py(y):.1f}" y2="{py(y):.1f}" stroke="#e4e4e4"/>'
            f'<text x="{LEFT - 8}" y="{py(y) + 4:.1f}" text-anchor="end" fill="#444444">{nice_number(y)}</text>'
        )
    for x in xs:
        out.append(
            f'<line x1="{px(x):.1f}" x2="{px(x):.1f}" y1="{TOP}" y2="{TOP + plot_h}" stroke="#f0f0f0"/>'
            f'<text x="{px(x):.1f}" y="{TOP + plot_h + 20}" text-anchor="middle" fill="#444444">{nice_number(x)}</text>'
        )
    out.append(
        f'<text x="{LEFT + plot_w / 2:.1f}" y="{HEIGHT - 14}" text-anchor="middle" fill="#222222">{escape(x_label)}</text>'
        f'<text transform="translate(20 {TOP + plot_h / 2:.1f}) rotate(-90)" text-anchor="middle" fill="#222222">'
        f"{escape(y_label)}</text>"
    )
    label_ys = spread([py(points[-1][1]) for points in series.values()], 17)
    # Ours takes the first colour, the others the rest in order.
    others = iter(COLORS[1:])
    for (name, points), label_y in zip(series.items(), label_ys):
        color = COLORS[0] if name in heavy else next(others, "#333333")
        weight = 3 if name in heavy else 1.8
        path = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{weight}"/>')
        out += [f'<circle cx="{px(x):.1f}" cy="{py(y):.1f}" r="3.2" fill="{color}"/>' for x, y in points]
        end_x = px(points[-1][0])
        out.append(
            f'<text x="{max(end_x + 9, LEFT + plot_w + 9):.1f}" y="{label_y + 4:.1f}" fill="{color}" '
            f'font-weight="{"bold" if name in heavy else "normal"}">{escape(name)}</text>'
        )
    return "\n".join(out) + "\n</svg>\n"
