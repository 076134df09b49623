//! The results as a page: which curves, which tables, and the sentence above them.

use super::{
    claims,
    outcome::{Results, StepRecord},
    table,
    verdict::{Ruling, Verdict, control, judge},
};
use crate::report::comparison::{Comparison, Figure, Table, render as render_comparison};

type Named<'a> = (&'a str, &'a str);

/// The page as HTML.
pub fn render(results: &Results) -> String {
    let verdicts = judge(results);
    let setting = &results.plan.setting;
    render_comparison(&Comparison {
        title: "How close each correction stays to on-policy training".into(),
        lead: lead(results, &verdicts),
        steps: setting.evaluations(),
        figures: figures(results),
        tables: vec![verdict_table(&verdicts), row_table(results)],
        configuration: toml::to_string_pretty(setting)
            .unwrap_or_else(|error| unreachable!("a setting is TOML: {error}")),
    })
}

/// What came out, in a few sentences.
pub fn lead(results: &Results, verdicts: &[Verdict]) -> String {
    let count = |ruling| verdicts.iter().filter(|verdict| verdict.ruling == ruling).count();
    let [held, not, vacuous, open] =
        [Ruling::Reproduced, Ruling::NotReproduced, Ruling::Vacuous, Ruling::NotMeasured].map(count);
    let control = control(results).map_or_else(String::new, |floors| {
        format!(" A policy that never trains is at least {floors:.1} noise floors away.")
    });
    let missing = match results.missing {
        0 => String::new(),
        n => format!(" {n} of {} arms are not done: these are partial results.", results.plan.arms.len()),
    };
    let seeds = results.rows.iter().filter(|row| row.name != claims::UNTRAINED).map(|row| row.arms.len()).min();
    let few = seeds.filter(|&seeds| seeds < 3).map_or_else(String::new, |seeds| {
        format!(" Some rows have {seeds} of the 3 seeds that a verdict near two floors needs.")
    });
    format!(
        "Of {} claims and bars {held} are reproduced, {not} are not, {vacuous} are vacuous and {open} not measured.{control}{missing}{few}",
        verdicts.len()
    )
}

fn figures(results: &Results) -> Vec<Figure> {
    let floors = |id, title, rows: [Named<'_>; 3]| Figure {
        id,
        title,
        unit: "KL from on-policy, in noise floors",
        log: false,
        threshold: Some(2.0),
        curves: curves(results, &rows, |results, row, step| results.floors(row, step)),
    };
    let stale = [("none", claims::NONE_STALE), ("IS", claims::IS_STALE), ("never trained", claims::UNTRAINED)];
    let dlc = [("DLC-A", claims::DLC_STALE), ("DLC-A + trigger", claims::DLC), ("IS + trigger", "is-exact-trigger")];
    let credit = [
        ("DLC-A + trigger", claims::DLC),
        ("DLC-A + as many syncs, evenly", "dlc_a-exact-periodic"),
        ("none + trigger", "none-exact-trigger"),
    ];
    let coarse = [("none", claims::NONE_INT4), ("centring", claims::CENTRING_INT4), ("IS", "is-int4-fresh")];
    let both = [("DLC-A", "dlc_a-int4-trigger"), ("DLC-F", "dlc_f-int4-trigger"), ("DLC-E", "dlc_e-int4-trigger")];
    let wrong = [
        ("centring without the weight", "wrong_unweighted_centring-exact-never"),
        ("weighted centring", "wrong_weighted_centring-exact-never"),
        ("lag taken against q", "wrong_lag_against_q-exact-never"),
    ];
    let late = [
        ("DLC-A + trigger", claims::DLC),
        ("the ESS taken after a clip", "dlc_a-exact-wrong_clip_before_ess"),
        ("no trigger", claims::DLC_STALE),
    ];
    let int8 = [("DLC-A", "dlc_a-int8-trigger"), ("DLC-F", "dlc_f-int8-trigger"), ("IS", "is-int8-trigger")];
    let ppo = [
        ("on q, int4 fresh", "ppo_q-int4-fresh"),
        ("on p_s, stale", "ppo_s-exact-never"),
        ("on p_s, int4 fresh", "ppo_s-int4-fresh"),
    ];
    let floors = [
        floors("stale", "Stale sampler, no synchronisation", stale),
        floors("dlc", "Stale sampler, with the trigger", dlc),
        floors("credit", "What the trigger is worth", credit),
        floors("coarse", "int4 sampler, fresh weights", coarse),
        floors("both", "int4 sampler, stale, with the trigger", both),
        floors("ppo", "PPO by its anchor", ppo),
        floors("int8", "int8 sampler, stale, with the trigger", int8),
        floors("wrong", "Wrong on purpose, stale sampler", wrong),
        floors("late", "Wrong on purpose: a clip before the ESS", late),
    ];
    floors.into_iter().chain(traces(results)).collect()
}

/// What is told in other units than distances.
fn traces(results: &Results) -> [Figure; 3] {
    let own = |results: &Results, row: &str, step| results.row(row)?.step(step, |record| record.terms.full.kl);
    let ess =
        |results: &Results, row: &str, step| results.row(row)?.step(step, |record: &StepRecord| record.ess.horizon);
    let (stale, is) = (("none", claims::NONE_STALE), ("IS", claims::IS_STALE));
    let (ppo, dlc) = (("PPO on q, int4 fresh", "ppo_q-int4-fresh"), ("DLC-A + trigger", claims::DLC));
    [
        collapse(results),
        Figure {
            id: "ess",
            title: "ESS of the raw lag ratio",
            unit: "horizon ESS, share of the answers",
            log: false,
            threshold: Some(0.5),
            curves: curves(results, &[stale, is, dlc], ess),
        },
        Figure {
            id: "own",
            title: "Ordinary KL on the sampler's own prefixes",
            unit: "KL(q || p_theta), nats a token (log axis)",
            log: true,
            threshold: None,
            curves: curves(results, &[stale, ppo, dlc], own),
        },
    ]
}

/// What a per-token rule earns at the largest rate of the grid.
fn collapse(results: &Results) -> Figure {
    let [stale, sixteen, trigger] = ["never", "every16", "trigger"].map(|sync| claims::at_largest_rate(results, sync));
    let of = |results: &Results, row: &str, step| results.row(row)?.reward(step);
    Figure {
        id: "collapse",
        title: "TIS at the largest learning rate of the grid",
        unit: "reward of the policy's own answers",
        log: false,
        threshold: None,
        curves: curves(
            results,
            &[
                ("stale", stale.as_str()),
                ("every 16 updates", sixteen.as_str()),
                ("with the trigger", trigger.as_str()),
            ],
            of,
        ),
    }
}

fn curves(
    results: &Results,
    rows: &[Named<'_>],
    of: impl Fn(&Results, &str, u64) -> Option<f64>,
) -> Vec<(String, Vec<Option<f64>>)> {
    let looks = results.plan.setting.evaluations();
    let there = rows.iter().filter(|(_, row)| results.row(row).is_some());
    there.map(|(name, row)| ((*name).to_owned(), looks.iter().map(|&step| of(results, row, step)).collect())).collect()
}

fn verdict_table(verdicts: &[Verdict]) -> Table {
    let row = |verdict: &Verdict| {
        vec![verdict.id.to_owned(), verdict.ruling.to_string(), verdict.claim.to_owned(), verdict.numbers.clone()]
    };
    Table {
        title: "Claims and bars".into(),
        columns: ["", "verdict", "claim", "numbers"].map(String::from).into(),
        rows: verdicts.iter().map(row).collect(),
    }
}

fn row_table(results: &Results) -> Table {
    let steps = table::shown(results);
    let mut columns: Vec<String> = vec!["row".into()];
    columns.extend(steps.iter().map(|step| format!("floors at {step}")));
    columns.extend(["seeds", "syncs", "smallest ESS", "reward"].map(String::from));
    let last = steps.last().copied().unwrap_or(0);
    let cell =
        |value: Option<f64>, decimals: usize| value.map_or_else(|| "–".into(), |value| format!("{value:.decimals$}"));
    let rows = results.rows.iter().map(|row| {
        let mut cells = vec![row.name.clone()];
        cells.extend(steps.iter().map(|&step| cell(results.floors(&row.name, step), 2)));
        cells.push(row.arms.len().to_string());
        cells.push(format!("{:.1}", row.syncs()));
        cells.push(cell(table::smallest_ess(row), 3));
        cells.push(cell(row.reward(last), 3));
        cells
    });
    Table { title: "Every row, mean over its seeds".into(), columns, rows: rows.collect() }
}
