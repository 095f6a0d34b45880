"""The page's style: colours for light and dark; nothing is fetched."""

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
main { max-width: 1120px; margin: 0 auto; padding: 32px 20px 48px; }
header h1 { font-size: 26px; line-height: 1.2; margin: 0 0 2px; letter-spacing: -0.01em; }
header p { margin: 0; color: var(--soft); }
section { background: var(--sheet); border: 1px solid var(--rule); border-radius: 10px; padding: 18px 20px; margin-top: 16px; }
h2 { font-size: 16px; margin: 0 0 4px; }
h3 { font-size: 13px; font-weight: 600; margin: 14px 0 4px; }
p.about { margin: 0 0 10px; color: var(--soft); font-size: 13px; max-width: 96ch; }
.diagnosis { border-left: 4px solid var(--task); font-size: 17px; line-height: 1.45; }
.diagnosis::first-letter { text-transform: uppercase; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin-top: 18px; }
.tile { background: var(--sheet); border: 1px solid var(--rule); border-radius: 10px; padding: 12px 16px; }
.tile b { display: block; font-size: 25px; line-height: 1.25; font-weight: 600; letter-spacing: -0.01em; }
.tile span { color: var(--soft); font-size: 13px; }
.plot { position: relative; margin: 6px 0 26px 52px; }
.plot.names { margin-left: 66px; }
.plot svg { position: absolute; inset: 0; width: 100%; height: 100%; overflow: visible; }
.plot span { position: absolute; white-space: nowrap; font-size: 11px; line-height: 14px; color: var(--soft); }
.plot .y, .plot .row { right: 100%; margin-right: 8px; transform: translateY(-50%); }
.plot .row { font-size: 12px; color: var(--ink); }
.plot .x { top: 100%; margin-top: 5px; transform: translateX(-50%); }
.plot .x.first { transform: none; } .plot .x.last { transform: translateX(-100%); }
.plot .flag {
  transform: translate(-50%, -50%); width: 17px; height: 17px; border-radius: 9px; line-height: 17px; text-align: center;
  background: var(--fault); color: var(--sheet); font-weight: 600;
}
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(320px, 100%), 1fr)); gap: 8px 28px; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(320px, 100%), 1fr)); gap: 0 16px; align-items: start; }
.race { display: grid; gap: 10px; margin: 12px 0 10px; }
.lane { display: grid; grid-template-columns: 84px 1fr 210px; gap: 2px 12px; align-items: center; }
.lane .who { text-align: right; font-weight: 600; font-size: 13px; }
.lane .rate { font-size: 13px; font-variant-numeric: tabular-nums; }
.lane .rate b { font-size: 16px; } .lane small { color: var(--soft); font-size: 12px; white-space: nowrap; }
.track { position: relative; display: block; height: 26px; background: var(--base); border-radius: 3px; }
.track b { position: absolute; left: 0; top: 0; bottom: 0; border-radius: 3px; }
.track .ours { background: var(--task); } .track .theirs { background: var(--other); }
.track .limit { border: 1.5px dashed var(--soft); }
.spread {
  position: absolute; top: 8px; bottom: 8px; min-width: 2px; border: solid var(--ink); border-width: 0 1.5px; opacity: 0.75;
  background: linear-gradient(var(--ink), var(--ink)) center / 100% 1.5px no-repeat;
}
.verdict { margin: 4px 0 6px; font-size: 15px; font-weight: 600; }
@media (max-width: 640px) {
  main { padding: 20px 12px 32px; }
  section { padding: 14px 14px; }
  .plot .spare { display: none; }
  .lane { grid-template-columns: 1fr auto; }
  .lane .who { text-align: left; } .lane .track { grid-row: 2; grid-column: 1 / -1; }
  .race { gap: 14px; }
}
.key { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 0 0 6px; padding: 0; list-style: none; font-size: 13px; color: var(--soft); }
.key i { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin-right: 6px; vertical-align: -1px; }
ul.faults { margin: 0 0 8px; padding: 0; list-style: none; font-size: 13px; }
ul.faults li { display: flex; gap: 8px; align-items: baseline; padding: 2px 0; }
ul.faults b {
  flex: none; width: 17px; height: 17px; border-radius: 9px; line-height: 17px; text-align: center; font-size: 11px;
  background: var(--fault); color: var(--sheet);
}
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
.task { fill: var(--task); } .task.odd { fill: var(--task-2); } .collate { fill: var(--collate); } .wait { fill: var(--wait); }
.base { fill: var(--base); }
.plot line, .plot path { vector-effect: non-scaling-stroke; }
p.note { margin: 6px 0 0; font-size: 13px; }
footer { margin-top: 20px; color: var(--soft); font-size: 12px; text-align: center; }
.grid { stroke: var(--rule); stroke-width: 1; } .mark { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 3 3; }
line.fault { stroke: var(--fault); stroke-width: 1.5; }
.ready { fill: var(--fine); fill-opacity: 0.35; } .flow { fill: var(--task); fill-opacity: 0.18; }
.flow-line { fill: none; stroke: var(--task); stroke-width: 1.5; }
@media print { body { background: #fff; } section, .tile { break-inside: avoid; } }
"""
