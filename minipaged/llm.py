"""`LLM`: load a model, hand in prompts, get text back."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from itertools import count
from numbers import Integral
from threading import RLock
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

from .config import EngineConfig
from .errors import EngineInUseError, InvalidRequestError
from .models.chat_template import Message, is_conversation, render_chat
from .models.facts import changed_parameters
from .outputs import CacheStats, RequestOutput
from .sampling_params import BeamSearchParams, Params, SamplingParams

if TYPE_CHECKING:
    from .engine.engine import LLMEngine

Prompt = str | Sequence[int]
OWN_PARTS = ("policy", "parts", "block_manager_class")  # arguments of LLMEngine

logger = logging.getLogger(__name__)


class LLM:
    """A model served through a paged KV cache. Calls from several threads are served one after another.

    model: "smollm2-135m" (fetched once, 93 MB), a Hugging Face id, or a folder. dtype: "auto" is the
    checkpoint's own on a GPU. On a CPU it is bfloat16 if the checkpoint has 16 bits and the processor has
    units for bfloat16, and float32 otherwise. device: "auto", "cpu", "cuda" or "cuda:1". pack_weights: True
    lays out the weights for fast products on a CPU; None does so in 16 bits, where it takes no memory.
    policy: who starts next and who gives way, such as `Priority()`; by default first come, first served.
    parts: classes of your own that keep the blocks, such as `Parts(allocator_class=...)`; or a whole
    `block_manager_class`. The other arguments are those of `minipaged.config.EngineConfig`.
    """

    def __init__(
        self,
        model: str = "smollm2-135m",
        *,
        dtype: str = "auto",
        device: str = "auto",
        pack_weights: bool | None = None,
        **settings: Any,
    ) -> None:
        own = {name: settings.pop(name) for name in OWN_PARTS if name in settings}
        config = EngineConfig(**settings)
        self.engine = _load_engine(model, dtype, device, pack_weights, config, own)
        self._numbers = count()
        self._serving = RLock()
        if changed := changed_parameters(self.engine.loaded.default_params):
            logger.warning(
                "%s: generate and chat without SamplingParams use generation_config.json: %s", model, changed
            )

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer, or None where it has none."""
        return self.engine.tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Generate for one prompt or many (texts, or lists of token ids), in the order given.

        params: one for all, or one per prompt; the model's own by default, see `get_default_sampling_params`.
        Raises InvalidRequestError before anything is generated.
        """
        batch = _as_prompts(prompts)
        if params is None:
            params = self.get_default_sampling_params()
        return self._serve(batch, _as_params(params, len(batch)), use_tqdm)

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the parameters of the model's generation_config.json. `dataclasses.replace` changes some."""
        return self.engine.loaded.default_params

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, written out with the model's own chat template.

        Raises what `chat_token_ids` raises, before anything is generated.
        """
        conversations = [messages] if is_conversation(messages) else messages
        prompts = [self.chat_token_ids(conversation) for conversation in conversations]  # type: ignore[arg-type]
        return self.generate(prompts, params, use_tqdm)

    def chat_token_ids(self, messages: Sequence[Message]) -> list[int]:
        """Return a conversation in the model's chat template, up to the start of the model's answer.

        Raises InvalidRequestError for messages that the template refuses, and ModelNotSupportedError for a
        template that is broken or doesn't end.
        """
        text = render_chat(self.tokenizer, messages, self.engine.config.max_prompt_bytes)
        return self.engine.intake.tokenize_text(text, add_special_tokens=False)

    def beam_search(
        self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams, use_tqdm: bool = True
    ) -> list[RequestOutput]:
        """Return the `beam_width` best outputs of each prompt, best first, as `generate(num_beams=...)` does.

        Their tables share blocks, and are forked and pruned as the search goes on. Raises
        InvalidRequestError before anything is generated.
        """
        batch = _as_prompts(prompts)
        return self._serve(batch, [params] * len(batch), use_tqdm)

    def stats(self) -> CacheStats:
        """Return the state of the pool now, and totals since the start."""
        return self.engine.stats()

    def _serve(self, prompts: list[Prompt], params: Sequence[Params], use_tqdm: bool) -> list[RequestOutput]:
        """Queue all prompts or none, run them, and return their outputs in order."""
        ids: list[str] = []
        with self._serving, self._all_or_none(ids):
            for prompt, own_params in zip(prompts, params, strict=True):
                self._add(ids, prompt, own_params)
            outputs = self._run(ids, use_tqdm)
        return [outputs[request_id] for request_id in ids]

    def _add(self, ids: list[str], prompt: Prompt, params: Params) -> None:
        """Queue a request under an unused id, and note the id."""
        while self.engine.knows(request_id := f"llm-{next(self._numbers)}"):
            continue
        ids.append(request_id)  # before it enters: an interrupt may come right after that
        try:
            self.engine.add_request(request_id, prompt, params)
        except InvalidRequestError:
            ids.remove(request_id)
            raise

    def _run(self, ids: list[str], use_tqdm: bool) -> dict[str, RequestOutput]:
        """Step until all of `ids` are finished, and return their last outputs."""
        own = set(ids)
        done: dict[str, RequestOutput] = {}
        with tqdm(total=len(ids), desc="requests", disable=not use_tqdm) as bar:
            while len(done) < len(ids):
                outputs = self.engine.step()
                if not outputs and not self.engine.has_unfinished_requests():
                    raise EngineInUseError("another caller of engine.step() took outputs of this call")
                for output in outputs:
                    if output.finished and output.request_id in own:
                        done[output.request_id] = output
                        bar.update()
        return done

    @contextmanager
    def _all_or_none(self, ids: list[str]) -> Iterator[None]:
        """Forget all requests of a call that fails or is interrupted."""
        try:
            yield
        except BaseException:
            for _ in range(3):  # Ctrl-C again may come before `forget` puts it off
                with suppress(KeyboardInterrupt):
                    self.engine.forget(ids)
                    break
            raise


def _load_engine(
    model: str,
    dtype: str,
    device: str,
    pack_weights: bool | None,
    config: EngineConfig,
    parts: dict[str, Any],
) -> LLMEngine:
    """Load a model into an engine. torch and transformers are imported here, since that takes seconds."""
    from .engine.engine import LLMEngine
    from .engine.model_hook import ATTENTION_NAME
    from .models.loading import load_model

    loaded = load_model(
        model, dtype=dtype, device=device, attn_implementation=ATTENTION_NAME, pack_weights=pack_weights
    )
    return LLMEngine(loaded, config, **parts)


def _as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return one prompt, or several, as a list. Each is checked when its request is made."""
    if hasattr(prompts, "tolist"):  # an array or a tensor, of one prompt or of several
        prompts = prompts.tolist()
    if isinstance(prompts, (str, bytes, Mapping, Set)) or not isinstance(prompts, Iterable):
        return [prompts]  # type: ignore[list-item]
    batch = list(prompts)
    if batch and all(isinstance(item, Integral) for item in batch):
        return [batch]  # type: ignore[list-item]
    return batch  # type: ignore[return-value]


def _as_params(params: SamplingParams | Sequence[SamplingParams], num_prompts: int) -> list[SamplingParams]:
    """Return one set of parameters per prompt."""
    if isinstance(params, SamplingParams):
        return [params] * num_prompts
    listed = list(params) if isinstance(params, Sequence) else [params]
    if len(listed) != num_prompts:
        raise InvalidRequestError(f"params has {len(listed)} entries for {num_prompts} prompts")
    for entry in listed:
        if not isinstance(entry, SamplingParams):
            raise InvalidRequestError(f"params must hold SamplingParams, got {entry!r}")
    return listed
