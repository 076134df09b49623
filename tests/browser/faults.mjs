// Ways to break a report, and the problem that each must be found as.

export const FAULTS = [
  {
    name: "script error",
    breakPage: (page) => page.replace("</body>", "<script>undefinedFunction();</script></body>"),
    expect: /exception: ReferenceError/,
  },
  {
    name: "console error",
    breakPage: (page) => page.replace("</body>", `<script>console.error("broken");</script></body>`),
    expect: /console error: broken/,
  },
  {
    name: "something from outside",
    breakPage: (page) => page.replace("</body>", `<img src="picture.png" alt="" /></body>`),
    expect: /console error: .*(Content Security Policy|violates)/,
  },
  {
    name: "curves without points",
    breakPage: (page) => page.replace(/(<path class="curve [^"]*" d=")[^"]*/g, "$1M50 50"),
    expect: /plot without a curve/,
  },
  {
    name: "too wide",
    breakPage: (page) => page.replace("</main>", `<p style="width: 1700px">wide</p></main>`),
    expect: /wider than the window/,
  },
  {
    name: "pale text",
    breakPage: (page) => page.replace("--muted: #5a6169", "--muted: #c8ccd0"),
    expect: /light: text contrast 1\.\d+ below 4\.5/,
  },
  {
    name: "tiny text",
    breakPage: (page) => page.replace("</style>", ".plot text { font-size: 5px !important; } </style>"),
    expect: /text too small/,
  },
  {
    name: "labels over labels",
    breakPage: (page) => page.replace(/(<text class="x" x=")[^"]*/g, "$1200"),
    expect: /text over text/,
  },
  {
    name: "dead pointer",
    breakPage: (page) => page.replace(`"pointermove"`, `"nothing"`),
    expect: /the pointer shows nothing/,
  },
];
