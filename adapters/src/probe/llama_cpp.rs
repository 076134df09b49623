//! What a `llama-server` does, seen from outside.

use super::{Findings, Known, Probed, request, text};
use crate::{
    answer::{Versions, stamp},
    http::Http,
    link::Dialect,
    llama_cpp::{Leg, PATH, Parser, encode},
    options::Options,
};
use hyper::Method;
use lockstep_core::{
    Stamp,
    ports::{PortError, PortResult},
    profile::{FilterName, LogProbMeaning, TieRule},
    sampling::Truncation,
    version::Evidence,
};

/// Not cut, so that a row is listed for whatever is drawn, and to a length that the row must have.
const OPEN: Truncation = Truncation { top_k: 2, top_p: 1.0, min_p: 0.0 };

pub(super) async fn probe(http: &Http, options: &Options) -> PortResult<Probed> {
    let mut findings = Findings::default();
    let props = http.get("/props").await?;
    let models = http.get("/v1/models").await?;
    let said = models.pointer("/data/0/meta/n_vocab").and_then(|size| u32::try_from(size.as_u64()?).ok());
    let vocabulary = options.vocabulary.or(said).ok_or_else(|| {
        PortError::Refused(format!("llama-server at {} does not say its vocabulary; pass --vocabulary N", http.base()))
    })?;
    let model = drawn(http, options, vocabulary, &mut findings).await?;
    let versions = versions(options, model.as_deref(), &mut findings);
    let known = Known {
        engine: "llama.cpp",
        version: text(&props, "/build_info").unwrap_or_else(|| "not reported".into()),
        filters: [FilterName::Temperature, FilterName::TopK, FilterName::TopP, FilterName::MinP],
        ties: TieRule::Unspecified,
        log_probs: LogProbMeaning::Drawn,
    };
    let (dialect, profile, findings) = (Dialect::LlamaCpp { model }, known.profile(), findings.0);
    Ok(Probed { dialect, profile, vocabulary, versions, label: None, control: false, findings })
}

/// Draws two tokens: the settings are echoed as they were asked, the rows hold together. Gives the model's name.
async fn drawn(http: &Http, options: &Options, vocabulary: u32, findings: &mut Findings) -> PortResult<Option<String>> {
    let asked = request(OPEN, 2)?;
    let leg = Leg { tokens: 2, most_kept: options.most_kept, head: options.log_probs, attempt: 0 };
    let body = encode(&asked, &leg).map_err(|error| PortError::Refused(error.to_string()))?;
    let reply = http.ask(Method::POST, PATH, Some(&body)).await?;
    if !reply.status.is_success() {
        let why = format!("llama-server at {} refuses a plain request: {}", http.base(), reply.sentence());
        return Err(PortError::Refused(why));
    }
    match Parser::new(&asked, &leg, vocabulary).parse(&reply.body) {
        Ok(drawn) => Ok(drawn.model),
        Err(error) => {
            findings
                .untruthful(format!("its reply cannot be believed: {error}"), "use a llama-server of 2026 or later");
            Ok(text(&reply.json(), "/model"))
        }
    }
}

fn versions(options: &Options, model: Option<&str>, findings: &mut Findings) -> Versions {
    let Some(version) = options.weight_version else {
        let remedy = "pass --weight-version e0.s0 to Lockstep; the weights of one llama-server never change";
        findings.untruthful("llama.cpp has no label for its weights", remedy);
        return Versions::Fixed(Stamp::undeclared());
    };
    let label = format!("{version} ({})", model.unwrap_or("no model name"));
    let declared = Stamp::declared(version, Evidence::Label(label));
    Versions::Fixed(declared.unwrap_or_else(|| stamp("")))
}
