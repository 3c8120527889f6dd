# SPDX-License-Identifier: Apache-2.0
"""The look of the page: a phone first, dark where the reader's system is dark, and ink on white when printed."""

from __future__ import annotations

from paceline_host.plot import COLOURS, PART_COLOURS

_DARK = ("#f2f2f2", "#5cb3f0", "#ff8a4c", "#2fd0a0", "#e9a3cb", "#f2b93b", "#a5d8ff", "#c9a878")
_DARK_PARTS = {"compute": "#3d9be0", "wait": "#f2b93b", "transfer": "#2fd0a0", "wasted": "#ff8a4c", "other": "#a0a0a0"}


def _colours(lines: tuple[str, ...], parts: dict[str, str]) -> str:
    named = [f"--c{i}:{colour}" for i, colour in enumerate(lines)]
    return ";".join([*named, *(f"--{part}:{colour}" for part, colour in parts.items())])


STYLE = (
    ":root{color-scheme:light dark;--paper:#fff;--ink:#1b1f23;--soft:#57606a;--rule:#d4d9de;--panel:#f5f7f9;"
    "--accent:#0072b2;--good:#0a6b4b;--bad:#b3261e;"
    + _colours(COLOURS, PART_COLOURS)
    + "}@media screen and (prefers-color-scheme:dark){:root{--paper:#14171a;--ink:#e8eaed;--soft:#a6adb5;"
    "--rule:#3a4148;--panel:#1e2226;--accent:#5cb3f0;--good:#5fd6ac;--bad:#ff9087;"
    + _colours(_DARK, _DARK_PARTS)
    + """}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0 auto;max-width:1180px;padding:16px;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif;overflow-wrap:anywhere}
h1{font-size:1.6rem;line-height:1.2;margin:0 0 4px}
h2{font-size:1.2rem;margin:40px 0 8px;padding-top:12px;border-top:1px solid var(--rule)}
h3{font-size:1rem;margin:24px 0 4px}
p{margin:6px 0;max-width:75ch}
.soft,.none,figcaption,caption{color:var(--soft);font-size:.875rem}
.lede{font-size:1.1rem;margin:16px 0}
.lede b{white-space:nowrap}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,240px),1fr));gap:12px;margin:16px 0}
.card{max-width:440px;padding:10px 14px;background:var(--panel);
border:1px solid var(--rule);border-top:4px solid var(--c);border-radius:6px}
.card h3{margin:0 0 4px;font-size:1.05rem;display:flex;gap:8px;align-items:center}
.card dl{display:grid;grid-template-columns:auto 1fr;gap:2px 10px;margin:0}
.card dt{color:var(--soft);font-size:.875rem;padding-top:3px}
.card dd{margin:0;text-align:right}
.card dd b{font-size:1.15rem;font-variant-numeric:tabular-nums}
.card dd span{display:block;font-size:.875rem;color:var(--soft)}
.proof{border-left:4px solid var(--good);padding:6px 12px;background:var(--panel);margin:12px 0;max-width:none}
.proof ul{list-style:none;margin:0 0 4px;padding:0}
.proof b{color:var(--good)}
.proof.bad{border-color:var(--bad)}
.proof .bad b{color:var(--bad)}
.proof.open{border-color:var(--soft)}
.proof .open b{color:var(--soft)}
.notes{padding-left:20px;max-width:75ch}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,330px),1fr));gap:24px 32px;align-items:start}
.two{grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr))}
figure{margin:8px 0;min-width:0;max-width:500px}
figure h3{margin:0 0 6px}
svg{display:block;width:100%;height:auto;font:11px system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif}
svg text{fill:var(--soft)}
svg .strong{fill:var(--ink);font-weight:600}
.grid{stroke:var(--rule);fill:none}
.line{stroke:var(--c);fill:none;stroke-width:1.8;stroke-linejoin:round}
.dots{stroke:var(--c);fill:none;stroke-width:1.6;stroke-dasharray:1.5 3;stroke-linecap:round}
.ring{stroke:var(--c);fill:none;stroke-width:1.2}
.dots.unknown{stroke:var(--soft)}
.mark{fill:var(--c)}
.bar{fill:var(--accent)}
.legend{display:flex;flex-wrap:wrap;gap:2px 16px;list-style:none;padding:0;margin:6px 0;font-size:.875rem}
.legend li{display:flex;align-items:center;gap:6px}
.swatch{width:22px;height:12px;flex:none;display:inline-block}
.key{width:12px;height:12px;flex:none;display:inline-block;-webkit-print-color-adjust:exact;print-color-adjust:exact}
.wide{overflow-x:auto;margin:12px 0;border:1px solid var(--rule);border-radius:6px}
.wide:focus-visible,summary:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
table{border-collapse:collapse;width:100%;font-size:.875rem;font-variant-numeric:tabular-nums}
caption{text-align:left;padding:6px 10px}
caption span{position:sticky;left:10px;display:inline-block;max-width:calc(100vw - 56px)}
th,td{padding:4px 10px;text-align:left;vertical-align:top;border-top:1px solid var(--rule)}
thead th{white-space:nowrap;color:var(--soft);font-weight:600}
tbody th{font-weight:500;position:sticky;left:0;background:var(--paper);max-width:11rem;min-width:6.5rem}
td{overflow-wrap:break-word;max-width:36rem}
td:last-child:not(.n){min-width:10rem}
.n{text-align:right;white-space:nowrap}
.sub{padding-left:12px;display:block;color:var(--soft)}
details{margin:10px 0}
summary{cursor:pointer;font-weight:600;padding:6px 0}
pre{overflow-x:auto;background:var(--panel);border:1px solid var(--rule);border-radius:6px;padding:10px;
font-size:.8125rem;line-height:1.4;overflow-wrap:normal}
footer{margin-top:40px;padding-top:12px;border-top:1px solid var(--rule)}
"""
    + "".join(f".p-{part}{{fill:var(--{part});background:var(--{part})}}" for part in PART_COLOURS)
    + """
@media print{body{max-width:none;padding:0;font-size:10pt}.wide{overflow:visible}
details::details-content{content-visibility:visible;height:auto}summary{list-style:none}
figure,.card,tr,.proof{break-inside:avoid}h2,h3,summary{break-after:avoid}tbody th{position:static;background:none}
pre{white-space:pre-wrap}*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
"""
)
