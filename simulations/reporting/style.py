"""Style sheet of all pages of the simulator: light and dark, on wide and narrow screens."""

__all__ = ["STYLE"]

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --text: #1b1f24; --faint: #5b6570;
  --line: #dfe3e8; --panel: #f5f7f9; --good: #00694d; --bad: #a83200; --alarm: #d40000;
  --good-text: #00694d; --bad-text: #a83200;
  --blue: #0072b2; --orange: #e69f00; --green: #009e73; --purple: #cc79a7; --red: #d55e00;
  --sky: #56b4e9; --grey: #999; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181d; --text: #e6e9ed; --faint: #a3adb8;
  --line: #303842; --panel: #1d232a; --alarm: #ff6b6b;
  --good-text: #4cc59d; --bad-text: #ff9a66; --blue: #2f97d8; --grey: #7d858e; } }
body { margin: 0; background: var(--paper); color: var(--text);
  font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 1100px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { margin: 0; font-size: 28px; overflow-wrap: anywhere; }
h1 + p { margin: 4px 0 16px; color: var(--faint); font-size: 17px; }
h2 { margin: 24px 0 8px; font-size: 17px; }
h3 { margin: 0; font-size: 15px; }
code { font: 13px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
.verdict { border-radius: 6px; padding: 10px 16px; color: #fff; font-size: 17px; font-weight: 600; }
.verdict ul { margin: 6px 0 0; padding-left: 20px; font-size: 14px; font-weight: 400; }
.verdict li { white-space: pre-wrap; overflow-wrap: anywhere; }
.verdict details { padding-left: 20px; font-size: 14px; font-weight: 400; }
.verdict a { color: inherit; } summary { cursor: pointer; }
.good { background: var(--good); } .bad { background: var(--bad); }
.guide { margin: 12px 0 0; color: var(--faint); font-size: 14px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 20px; margin: 16px 0; }
dt { color: var(--faint); } dd { margin: 0; }
.command { display: block; padding: 6px 10px; border-radius: 4px; background: var(--panel);
  user-select: all; white-space: pre-wrap; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(290px, 1fr));
  gap: 0 36px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
tr { border-bottom: 1px solid var(--line); }
th { text-align: left; font-weight: 400; padding: 3px 12px 3px 0; }
td { text-align: right; font-variant-numeric: tabular-nums; }
ol { margin: 0; padding-left: 26px; font-size: 14px; overflow-wrap: anywhere; }
.wide { overflow-x: auto; } thead { color: var(--faint); }
.wide th, .wide td { padding: 3px 10px 3px 0; white-space: nowrap; }
.nothing { margin: 0; color: var(--faint); font-style: italic; }
figure { margin: 0 0 26px; overflow-x: auto; }
figcaption p { margin: 0; color: var(--faint); font-size: 14px; }
.legend { display: flex; flex-wrap: wrap; gap: 0 18px; margin: 4px 0 2px; padding: 0;
  list-style: none; font-size: 13px; }
.legend svg { margin-right: 6px; overflow: visible; }
.plot { display: block; width: 100%; min-width: 640px; font-size: 12px; }
.plot text { fill: var(--faint); } .plot .axis { fill: var(--text); }
.plot .label { fill: #000; font-size: 10px; pointer-events: none; }
.plot .fault { font-size: 10px; }
.frame { fill: none; stroke: var(--faint); }
.grid { stroke: var(--line); }
.shade { fill: var(--faint); } .instant { stroke: var(--faint); opacity: 0.5; }
.load-end { stroke: var(--faint); stroke-dasharray: 2 3; }
.violation { stroke: var(--alarm); stroke-width: 1.5; }
.line { fill: none; stroke: var(--ink); stroke-width: 2; stroke-linecap: round;
  stroke-linejoin: round; }
.area { fill: var(--ink); opacity: 0.8; } .bar { fill: var(--ink); }
.blue { --ink: var(--blue); } .orange { --ink: var(--orange); } .green { --ink: var(--green); }
.purple { --ink: var(--purple); } .red { --ink: var(--red); } .sky { --ink: var(--sky); }
.grey { --ink: var(--grey); } .dark { --ink: var(--text); }
.violation-story { margin: 18px 0 26px; }
.violation-story ol, .steps { padding-left: 30px; font-size: 14px; line-height: 1.55; }
.steps li.fault, .steps li.end { color: var(--bad-text); } .steps li.violation { font-weight: 600; }
.steps time { color: var(--faint); font-variant-numeric: tabular-nums; margin-right: 6px; }
.sequence { display: block; font-size: 12px; max-width: 100%; }
.sequence text { fill: var(--text); } .sequence .number { fill: var(--faint); }
.lane { stroke: var(--line); stroke-width: 2; } .lane.down { stroke-dasharray: 2 5; }
.head { fill: var(--panel); stroke: var(--line); }
.arrow { fill: none; stroke-width: 2; } .allowed { stroke: var(--green); }
.denied { stroke: var(--red); stroke-dasharray: 5 3; }
.dot { stroke-width: 2; } .dot.allowed { fill: var(--green); } .dot.denied { fill: var(--paper); }
.cross { stroke: var(--alarm); stroke-width: 3; } .back { fill: var(--green); }
.takes { fill: var(--orange); } .law { fill: var(--alarm); opacity: 0.16; }
.card td, .card th { white-space: normal; vertical-align: top; } .card thead th { font-size: 13px; }
.card thead th + th { text-align: right; }
.meter { display: inline-block; width: 90px; height: 9px; border-radius: 5px;
  background: var(--line); overflow: hidden; }
.meter span { display: block; height: 100%; background: var(--blue); }
.beside { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 330px), 1fr));
  gap: 8px 28px; align-items: start; }
.yes { color: var(--good-text); } .no { color: var(--bad-text); }
@media (max-width: 600px) { main { padding: 14px 12px 40px; } dl { grid-template-columns: 1fr;
  gap: 0; } dd { margin: 0 0 8px; } h1 { font-size: 23px; } .verdict { font-size: 16px; } }
"""
