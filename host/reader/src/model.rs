//! Reads for one model, where it is called.
use std::sync::{Arc, OnceLock};

use camshaft_core::engine::{Encode, Encoded, ModelInfo, Tokenizer};
use camshaft_core::grammar::GrammarStore;
use camshaft_template::{ChatTemplate, Conversation, RenderError, Source};
use serde::{Deserialize, Serialize};

use crate::prompt;
use crate::task::{Answer, Chat, ReadError, Stage, Task, Texts};

/// A model's chat template and its special tokens.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct TemplateSource {
    pub template: Option<String>,
    pub with_tools: Option<String>,
    pub bos: String,
    pub eos: String,
}

/// See the module.
#[derive(Debug)]
pub struct ModelReader {
    source: TemplateSource,
    /// Compiled when the first chat comes.
    template: OnceLock<Result<ChatTemplate, String>>,
    tokenizer: Arc<dyn Tokenizer>,
    grammars: Arc<GrammarStore>,
}

impl TemplateSource {
    pub fn of(info: &ModelInfo) -> Self {
        Self {
            template: info.chat_template.clone(),
            with_tools: info.tool_template.clone(),
            bos: info.bos_text.clone(),
            eos: info.eos_text.clone(),
        }
    }

    /// # Errors
    /// It is not Jinja, or uses an unknown feature.
    pub fn compile(&self) -> Result<ChatTemplate, String> {
        let Self { template, with_tools, bos, eos } = self;
        let source = Source { template: template.as_deref(), with_tools: with_tools.as_deref(), bos, eos };
        ChatTemplate::compile(source).map_err(|error| format!("{error:#}"))
    }
}

impl ModelReader {
    pub fn new(source: TemplateSource, tokenizer: Arc<dyn Tokenizer>, grammars: Arc<GrammarStore>) -> Self {
        Self { source, template: OnceLock::new(), tokenizer, grammars }
    }

    /// Compiles the chat template now.
    ///
    /// # Errors
    /// It does not compile.
    pub fn template(&self) -> Result<&ChatTemplate, &String> {
        self.template.get_or_init(|| self.source.compile()).as_ref()
    }

    pub fn grammars(&self) -> &Arc<GrammarStore> {
        &self.grammars
    }

    /// Does a task. `at` hears of each stage when it begins.
    ///
    /// # Errors
    /// What is wrong with what was to be read.
    pub fn read(&self, task: Task, at: &dyn Fn(Stage)) -> Result<Answer, ReadError> {
        match task {
            Task::Describe => {
                at(Stage::Template);
                let traits = self.template().map(ChatTemplate::traits);
                traits.map(Answer::Template).map_err(|why| ReadError::Template(why.clone()))
            }
            Task::Chat(chat) => self.chat(*chat, at).map(Answer::Chat),
            Task::Texts(texts) => {
                at(Stage::Vocabulary);
                Ok(Answer::Texts(self.texts(&texts)))
            }
            Task::Grammar(grammar) => {
                at(Stage::Grammar);
                self.grammars.compile(&grammar).map(|_| Answer::Grammar).map_err(ReadError::Grammar)
            }
        }
    }

    fn texts(&self, texts: &Texts) -> Vec<Encoded> {
        let &Texts { add_special, parse_special, offsets, most, .. } = texts;
        let encode = |text: &String| {
            self.tokenizer.encode(Encode { add_special, parse_special, offsets, most, ..Encode::of(text) })
        };
        texts.texts.iter().map(encode).collect()
    }

    fn chat(&self, chat: Chat, at: &dyn Fn(Stage)) -> Result<prompt::Rendered, ReadError> {
        let template = self.template().map_err(|why| ReadError::Template(why.clone()))?;
        let has_tools = chat.has_tools;
        let render = |conversation: Conversation<'_>| {
            at(Stage::Template);
            let rendered = template.render(has_tools, conversation);
            at(Stage::Vocabulary);
            rendered.map_err(|error| match error {
                RenderError::Reserved(name) => {
                    ReadError::field(&format!("chat_template_kwargs.{name}"), error.to_string())
                }
                RenderError::Raised(message) => ReadError::field("messages", message),
                RenderError::Failed(error) => ReadError::Template(format!("{error:#}")),
            })
        };
        at(Stage::Vocabulary);
        prompt::render(&*self.tokenizer, &self.source.bos, chat, &render)
    }
}
