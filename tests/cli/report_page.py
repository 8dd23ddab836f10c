"""The report of varve compare as a browser lays it out: what overflows, overlaps or is too small to read."""

import json
import pathlib
import re
import shutil
import subprocess
import tempfile

SMALLEST_TEXT = 9  # CSS pixels

# Tells the page around it what it finds.
SCRIPT = """
<script>
addEventListener('load', () => {
  const faults = [];
  const root = document.documentElement;
  if (root.scrollWidth > innerWidth) faults.push(`the page is ${root.scrollWidth} wide in a window of ${innerWidth}`);
  const shown = (e) => e.getClientRects().length > 0;
  const apart = (a, b) => a.right <= b.left + 1 || b.right <= a.left + 1 || a.bottom <= b.top + 2 || b.bottom <= a.top + 2;
  let plots = 0;
  for (const svg of document.querySelectorAll('svg')) {
    if (!shown(svg)) continue;
    ++plots;
    const frame = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll('text')].map((t) => [t.textContent, t.getBoundingClientRect()]);
    texts.forEach(([text, box], i) => {
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
        faults.push(`"${text}" leaves its plot`);
      if (box.height < SMALLEST) faults.push(`"${text}" is ${box.height} high`);
      for (const [other, otherBox] of texts.slice(0, i))
        if (!apart(box, otherBox)) faults.push(`"${text}" lies on "${other}"`);
    });
  }
  for (const e of document.querySelectorAll('h1, h2, p, li, .tiers span')) {
    if (shown(e) && e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline')
      faults.push(`"${e.textContent.slice(0, 40)}" overflows`);
  }
  const blocks = [...document.querySelectorAll('h1, h2, p, figure, .scroll')].filter(shown).map((e) => e.getBoundingClientRect());
  blocks.forEach((box, i) => { if (i && box.top < blocks[i - 1].bottom - 1) faults.push(`block ${i} lies on the one before`); });
  parent.postMessage(JSON.stringify({width: innerWidth, plots, faults}), '*');
});
</script>
""".replace("SMALLEST", str(SMALLEST_TEXT))

# A window cannot be narrower than 500 pixels, a frame in it can. --dump-dom shows the title.
FRAME = """<!doctype html><title></title>
<script>addEventListener('message', (event) => { document.title = 'CHECKED' + event.data; });</script>
<iframe src="page.html" width="WIDTH" height="1600" style="border:0"></iframe>
"""


def browser():
    """chromium, or a failure that says how to get it."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not found:
        raise AssertionError("no chromium to open the report in; run `scripts/setup_deps.sh browser`")
    return found


def layout(page, width):
    """Opens a page in a frame of that width: {"width", "plots", "faults"}."""
    with tempfile.TemporaryDirectory() as folder:
        frame = pathlib.Path(folder) / "frame.html"
        frame.write_text(FRAME.replace("WIDTH", str(width)), encoding="utf-8")
        (pathlib.Path(folder) / "page.html").write_text(page + SCRIPT, encoding="utf-8")
        command = [browser(), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile"]
        command += [f"--window-size={width + 100},2000", "--virtual-time-budget=2000", "--dump-dom", frame.as_uri()]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
    found = re.search(r"<title>CHECKED(.*?)</title>", done.stdout)
    if not found:
        raise AssertionError(f"the browser did not check the page: {done.stderr[-500:]}")
    return json.loads(found.group(1).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
