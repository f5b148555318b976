"""The one client of OpenAI-compatible endpoints: model, price, requests, and what counts as an answer.

The retries of the `openai` library are off: what an error means, and when to ask again, `raypref.endpoints.retries`
decides. The library is imported late, as --help needs none of it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raypref.config import UserError
from raypref.endpoints.retries import Again, Refused, fault
from raypref.endpoints.thoughts import ends_thinking, without_thoughts
from raypref.tools import console

MODEL = "gpt-4o-mini"
"""The papers' judge and writer (S1 D.2, S2 2.3)."""

PRICES = (0.15, 0.60)
"""Public prices of `MODEL`, USD per million tokens read and written."""

CUT = "before a word of an answer"
"""In the reason of a request that was cut inside the model's thoughts."""
APART = ("reasoning_content", "reasoning", "thinking")
"""Fields of a message that hold thoughts where a server takes them out of the text."""


@dataclass(frozen=True, kw_only=True)
class Service:
    """Options of every command that sends requests to an endpoint."""

    model: str = MODEL
    """Who answers (S1 D.2 and S2 2.3: gpt-4o-mini)."""
    thinking: int = 0
    """Tokens for the thoughts of a model that reasons, on top of --max-tokens (some thousand); 0: it does not."""
    timeout: float = 60.0
    """Seconds without a sign of the server after which a request is given up."""
    attempts: int = 6
    """Tries of a request before it counts as failed."""
    backoff: float = 1.0
    """Seconds before the second try; they double each time, with jitter, up to a minute."""
    price_in: float = PRICES[0]
    """USD per million tokens read (gpt-4o-mini's public price)."""
    price_out: float = PRICES[1]
    """USD per million tokens written."""
    dry_run: bool = False
    """Count and estimate only."""


def check(service: Service, **least: float) -> None:
    """`UserError` where a number of the service is out of range; least: lowest values of further fields, by name."""
    for name, lowest in {**least, "thinking": 0, "attempts": 1, "backoff": 0, "price_in": 0, "price_out": 0}.items():
        if not lowest <= (number := getattr(service, name)) < float("inf"):
            raise UserError(f"--{name.replace('_', '-')} is {number}; it must be at least {lowest}")
    if not 0 < service.timeout < float("inf"):
        raise UserError(f"--timeout is {service.timeout}; it must be above 0")


def cost(tokens_in: float, tokens_out: float, service: Service) -> float:
    """The price in USD of so many tokens read and written."""
    return (tokens_in * service.price_in + tokens_out * service.price_out) / 1e6


@dataclass(frozen=True)
class Estimate:
    """The most tokens that requests may read and write, and their price in USD."""

    tokens_in: float
    tokens_out: int
    dollars: float

    def sentence(self, service: Service, digits: int = 2) -> str:
        """The estimate in words; digits: of the dollars, after the point."""
        return (
            f"about {self.tokens_in:,.0f} tokens in and at most {self.tokens_out:,} out, so at most "
            f"${self.dollars:,.{digits}f} at ${service.price_in:g} and ${service.price_out:g} a million (an estimate: "
            "characters / 4, and prices change)"
        )


def estimate(characters: Iterable[int], max_tokens: int, service: Service) -> Estimate:
    """Estimate requests of so many characters each: a token for 4 of them, 12 for the frame, and all written that may
    be: `max_tokens` and the thoughts before them."""
    read = [12 + number / 4 for number in characters]
    written = len(read) * (max_tokens + service.thinking)
    return Estimate(sum(read), written, cost(sum(read), written, service))


@dataclass(frozen=True)
class Answer:
    """The text of an answer, and the tokens that it took."""

    text: str
    finish: str = ""
    """Why the model stopped; `length`: it was cut at --max-tokens (and --thinking)."""
    tokens_in: int = 0
    tokens_out: int = 0


def text_of(content: Any) -> str:
    """The text of a message's content, which is a string, a list of parts or None, without the model's thoughts.

    Raises `TypeError` or `KeyError` for content that is none of these.
    """
    return without_thoughts(_joined(content))


def _joined(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part["text"] for part in content if part["type"] == "text")
    if content is not None and not isinstance(content, str):
        raise TypeError(f"content is text or a list of parts, not {type(content).__name__}")
    return content or ""


def answer(response: Any, url: str, max_tokens: int, purpose: str = "", thinking: int = 0) -> Answer:
    """The answer in a response (of httpx) with status 200; purpose: what the request was for, for messages.

    thinking: `Service.thinking`. Where a model reasons, a text that was cut and shows neither where its thoughts end
    nor that they are apart is thought.

    Raises `Again` for what is no chat completion, `Refused` where the model was cut before it came to an answer, and
    for an error in the place of an answer what `fault` makes of it.
    """
    try:
        body = response.json()
    except ValueError:
        if response.text.lstrip().startswith("<"):
            raise Again("it answers with HTML; OPENAI_BASE_URL should end in /v1 and be an API's") from None
        raise Again("an answer that is not JSON") from None
    if isinstance(body, dict) and body.get("error") and not body.get("choices"):
        raise fault(response, url, purpose)
    try:
        choice, usage = body["choices"][0], body.get("usage") or {}
        message, finish = choice["message"], str(choice.get("finish_reason") or "")
        said = _joined(message.get("content"))
        text = without_thoughts(said)
        read, written = int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        raise Again(f"no chat completion, but {response.text[:80]!r}") from None
    apart = isinstance(message.get("content"), list) or any(message.get(name) for name in APART)
    if finish == "length" and (not text or ends_thinking(said, reasons=thinking > 0 and not apart)):
        limit = f"--max-tokens {max_tokens}" + (f" and --thinking {thinking}" if thinking else "")
        mend = "raise --thinking" if thinking else "--thinking gives models that think room for it"
        raise Refused(f"it was cut at {limit}, {CUT}; {mend}")
    return Answer(text, finish, read, written)


class Client:
    """Requests chat completions, from any number of threads."""

    def __init__(self, base: str, key: str, service: Service, max_tokens: int, temperature: float) -> None:
        """base, key: of `raypref.endpoints.retries.address`. Raises `UserError` where no connection can be set up."""
        import openai

        self.url = base + "/chat/completions"
        self._service, self._max_tokens = service, max_tokens
        self._body = {
            "model": service.model,
            "temperature": temperature,
            "max_tokens": max_tokens + service.thinking,
        }
        self._lock = threading.Lock()
        try:  # no redirects: a prompt and a key go where the person said, and nowhere else
            http = openai.DefaultHttpxClient(follow_redirects=False)
            library = openai.OpenAI(
                api_key=key or "none", base_url=base, max_retries=0, timeout=service.timeout, http_client=http
            )
        except Exception as error:  # of URLs, proxies and certificates: ImportError, OSError, ValueError, httpx's
            why = " ".join(str(error).split())
            raise UserError(
                f"{self.url}: no connection can be set up ({why}); check OPENAI_BASE_URL, and where they are set "
                "ALL_PROXY, HTTPS_PROXY and SSL_CERT_FILE"
            ) from error
        self._create: Any = library.chat.completions.with_raw_response.create
        # Whoever has no key sends none, not even a made-up one.
        self._headers: Any = {} if key else {"Authorization": openai.Omit()}

    def ask(self, messages: Sequence[Mapping[str, str]], purpose: str = "") -> Answer:
        """Request one answer; purpose: what it is for, for messages.

        Raises `Again` for an error that may pass, `Refused` for one of this request alone, or `UserError`.
        """
        import openai

        body = self._body
        try:
            response = self._create(messages=messages, extra_headers=self._headers, **body).http_response
        except openai.APITimeoutError:
            raise Again(f"no answer within {self._service.timeout:g} s") from None
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            raise Again(f"no connection ({type(cause).__name__}: {' '.join(str(cause).split())})") from None
        except openai.APIStatusError as error:
            if error.status_code == 400 and self._goes_without(str(error.param), body):
                return self.ask(messages, purpose)
            raise fault(error.response, self.url, purpose) from None
        except UnicodeEncodeError:
            raise Refused("it holds half a character, which cannot be sent") from None
        return answer(response, self.url, self._max_tokens, purpose, self._service.thinking)

    def _goes_without(self, field: str, asked: Mapping[str, Any]) -> bool:
        """Whether there is another way to ask a model that refuses this field, as OpenAI's reasoning models do; from
        then on all are asked so. asked: what the request was."""
        if field not in ("max_tokens", "temperature") or field not in asked:
            return False
        with self._lock:
            if field in self._body:  # the first of those in flight
                value = self._body[field]
                self._body = {name: self._body[name] for name in self._body if name != field}
                if field == "max_tokens":
                    self._body["max_completion_tokens"] = value
                else:
                    console.warn(f"{self._service.model} takes no temperature {value:g}; it is asked at its own")
        return True
