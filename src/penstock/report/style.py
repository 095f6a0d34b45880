"""The page's style: colours once for light and once for dark, nothing fetched from elsewhere."""

STYLE = """
:root {
  color-scheme: light dark;
  --ground: #f7f7f5; --sheet: #ffffff; --ink: #1d1f22; --soft: #62676f; --rule: #e2e3e5; --base: #eceef0;
  --task: #2a78d6; --task-2: #7fb0ea; --collate: #1a9c94; --wait: #df7224; --fault: #c3362b; --fine: #2b7a4b; --other: #a3a9b1;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #131416; --sheet: #1b1d20; --ink: #e7e8ea; --soft: #9ca1a9; --rule: #2f3236; --base: #282b2f;
    --task: #4a97ec; --task-2: #2b5f9c; --collate: #35b8ae; --wait: #ec8b46; --fault: #f2675c; --fine: #5cc088; --other: #71777f;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif;
}
main { max-width: 1080px; margin: 0 auto; padding: 32px 20px 48px; }
header h1 { font-size: 26px; line-height: 1.2; margin: 0 0 2px; letter-spacing: -0.01em; }
header p { margin: 0; color: var(--soft); }
section { background: var(--sheet); border: 1px solid var(--rule); border-radius: 10px; padding: 18px 20px; margin-top: 16px; }
h2 { font-size: 16px; margin: 0 0 4px; }
h3 { font-size: 13px; font-weight: 600; margin: 14px 0 4px; }
p.about { margin: 0 0 10px; color: var(--soft); font-size: 13px; max-width: 76ch; }
.diagnosis { border-left: 4px solid var(--task); font-size: 17px; line-height: 1.45; }
.diagnosis::first-letter { text-transform: uppercase; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin-top: 18px; }
.tile { background: var(--sheet); border: 1px solid var(--rule); border-radius: 10px; padding: 12px 16px; }
.tile b { display: block; font-size: 25px; line-height: 1.25; font-weight: 600; letter-spacing: -0.01em; }
.tile span { color: var(--soft); font-size: 13px; }
.wide { overflow-x: auto; }
.wide svg { display: block; width: 100%; min-width: 700px; height: auto; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(320px, 1fr)); gap: 20px; }
.pair svg { display: block; width: 100%; height: auto; }
.key { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 0 0 6px; padding: 0; list-style: none; font-size: 13px; color: var(--soft); }
.key i { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin-right: 6px; vertical-align: -1px; }
ol.faults { margin: 8px 0 0; padding-left: 24px; font-size: 13px; }
ul.checks { margin: 6px 0 0; padding: 0; list-style: none; }
ul.checks li { padding: 3px 0 3px 26px; position: relative; }
ul.checks li::before { position: absolute; left: 2px; font-weight: 700; }
ul.checks li.good::before { content: "\\2713"; color: var(--fine); }
ul.checks li.bad::before { content: "\\2717"; color: var(--fault); }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { text-align: left; padding: 4px 10px 4px 0; border-top: 1px solid var(--rule); vertical-align: top; }
tr:first-child th, tr:first-child td { border-top: 0; }
th { font-weight: 400; color: var(--soft); width: 42%; }
td { font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
svg text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif; fill: var(--ink); }
svg text.small { font-size: 11px; fill: var(--soft); }
svg text.halo { stroke: var(--sheet); stroke-width: 4px; paint-order: stroke; stroke-linejoin: round; }
svg text.inside { font-size: 11px; fill: #fff; pointer-events: none; }
@media (prefers-color-scheme: light) { svg text.inside.odd { fill: #12365f; } }
.task { fill: var(--task); } .task.odd { fill: var(--task-2); } .collate { fill: var(--collate); } .wait { fill: var(--wait); }
.other { fill: var(--other); } .base { fill: var(--base); } .dot { fill: var(--ink); stroke: var(--sheet); stroke-width: 1.2; }
.grid { stroke: var(--rule); stroke-width: 1; } .mark { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 3 3; }
line.fault { stroke: var(--fault); stroke-width: 1.5; } circle.fault { fill: var(--fault); }
.ready { fill: var(--fine); fill-opacity: 0.35; } .flow { fill: var(--task); fill-opacity: 0.18; }
.flow-line { fill: none; stroke: var(--task); stroke-width: 1.5; }
@media print { body { background: #fff; } section, .tile { break-inside: avoid; } }
"""
