
(() => {
  "use strict";
  const root = document.documentElement;
  const specs = JSON.parse(document.getElementById("charts").textContent);
  const narrow = window.matchMedia("(max-width: 600px)");
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
  const themes = ["auto", "light", "dark"];
  const probe = document.body.appendChild(document.createElement("span"));
  let views = [];

  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);

  // What the charts look like, in the colours of the page.
  function config() {
    const color = (name) => {
      probe.style.color = `var(--${name})`; // resolved for the current theme
      return getComputedStyle(probe).color;
    };
    const [text, quiet, line, accent, good] = ["text", "quiet", "line", "accent", "good"].map(color);
    const small = narrow.matches;
    return {
      background: "transparent",
      font: getComputedStyle(document.body).fontFamily,
      aria: false,
      view: { stroke: null },
      axis: {
        labelColor: quiet, titleColor: quiet, gridColor: line, domainColor: line, tickColor: line,
        labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal", titlePadding: 8,
        titleLimit: small ? 210 : 400,
      },
      axisY: { domain: false, ticks: false, labelPadding: 8, labelLimit: small ? 104 : 190 },
      legend: {
        labelColor: text, labelFontSize: 12, orient: "top", columns: small ? 2 : 4, labelLimit: small ? 120 : 220,
        symbolType: "circle",
      },
      range: { category: ["accent", "second", "third", "fourth", "fifth", "sixth"].map(color) },
      bar: { cornerRadiusEnd: 2 },
      tick: { color: text, thickness: 3, bandSize: 16 },
      style: {
        bars: { color: accent },
        band: { color: good, opacity: 0.16 },
        target: { color: good, strokeWidth: 1.5, strokeDash: [5, 3] },
        boxes: { color: accent, fillOpacity: 0.1, stroke: accent, strokeOpacity: 0.7, strokeWidth: 0.8 },
        events: { color: accent, opacity: 0.6 },
        change: { color: quiet, strokeWidth: 2 },
        ends: { size: 110, opacity: 1 },
      },
    };
  }

  async function draw() {
    views.forEach((view) => view.finalize());
    const options = {
      actions: false, renderer: "svg", ast: true, config: config(), tooltip: { theme: isDark() ? "dark" : "light" },
    };
    views = await Promise.all(
      Object.entries(specs).map(([id, spec]) => window.vegaEmbed(document.getElementById(id), spec, options)),
    );
    root.dataset.charts = String(views.length);
  }

  function setTheme(theme) {
    if (theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme;
    button.querySelector("span").textContent = theme;
    try { localStorage.setItem("parketto-theme", theme); } catch { /* the page may have no storage */ }
  }

  const button = document.getElementById("theme");
  let theme = "auto";
  try { theme = localStorage.getItem("parketto-theme") || "auto"; } catch { /* as above */ }
  setTheme(themes.includes(theme) ? theme : "auto");
  button.hidden = false;
  button.addEventListener("click", () => {
    const now = root.dataset.theme || "auto";
    setTheme(themes[(themes.indexOf(now) + 1) % themes.length]);
    draw();
  });

  async function copied(code) {
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      // Without permission the text is selected, so that a key copies it.
      window.getSelection().selectAllChildren(code);
      return document.execCommand("copy");
    }
    return true;
  }

  for (const copy of document.querySelectorAll(".copy")) {
    copy.hidden = false;
    copy.addEventListener("click", async () => {
      copy.textContent = (await copied(copy.previousElementSibling)) ? "Copied" : "Selected";
      setTimeout(() => { copy.textContent = "Copy"; }, 1600);
    });
  }

  for (const query of [narrow, prefersDark]) query.addEventListener("change", draw);
  draw();
})();
