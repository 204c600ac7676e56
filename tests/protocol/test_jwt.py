"""JSON Web Tokens: which are accepted, for whom, and how an issuer's keys change."""

import base64
import hashlib
import hmac
import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from dragoman.protocol.addresses import AddressError
from dragoman.protocol.caller import Caller
from dragoman.protocol.jwt_keys import KeySource, fetch_keys
from dragoman.protocol.jwt_tokens import JwtCallers, JwtError
from dragoman.protocol.trust import Trust, parse_trust
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

DAY_S = 86400
ISSUER = "https://issuer.test"
EC_KEY, RSA_KEY = ec.generate_private_key(ec.SECP256R1()), rsa.generate_private_key(65537, 2048)


def key_set(**keys: Any) -> dict[str, Any]:
    """Return the public keys by their IDs."""
    found = []
    for kid, key in keys.items():
        kind: Any = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
        found.append({**json.loads(kind.to_jwk(key.public_key())), "kid": kid})
    return {"keys": found}


def token(key: Any = EC_KEY, *, kid: str | None = "a", algorithm: str = "ES256", **claims: Any) -> str:
    """Return a token that is right but for what is named; ``None`` leaves a claim out."""
    now = time.time()
    right = {"iss": ISSUER, "aud": "dragoman", "sub": "alice", "iat": now, "nbf": now, "exp": now + 2 * DAY_S}
    content = {name: value for name, value in {**right, **claims}.items() if value is not None}
    return jwt.encode(content, key, algorithm, headers=None if kid is None else {"kid": kid})


def trusting(jwks: Path | str, more: str = "", issuer: str = ISSUER) -> Trust:
    text = f"""
[[issuers]]
name = "test"
issuer = "{issuer}"
audience = "dragoman"
jwks = "{jwks}"
{more}
[[issuers.grants]]
claims = {{ groups = "ops" }}
scopes = ["admin"]
[[issuers.grants]]
claims = {{ scope = "agents", team = "a" }}
scopes = ["run"]
adapters = ["codex"]
"""
    return parse_trust(Path("trust.toml"), text.encode())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps(key_set(a=EC_KEY, b=RSA_KEY)))
    return path


async def test_claims_become_scopes_by_the_first_grant_that_fits(file: Path) -> None:
    callers, trust = JwtCallers(), trusting(file)
    ops = await callers.caller(trust, token(groups=["dev", "ops"], scope="agents", team="a"))
    assert ops == Caller("jwt test alice", frozenset({"admin"}))
    team = await callers.caller(trust, token(RSA_KEY, kid="b", algorithm="RS256", scope="x agents", team="a"))
    assert team == Caller("jwt test alice", frozenset({"run"}), ("codex",))
    for claims in ({"scope": "agents"}, {"groups": "op"}, {"groups": ["ops-not"]}, {"groups": {"ops": 1}}, {}):
        nothing = await callers.caller(trust, token(**claims))
        assert nothing == Caller("jwt test alice", frozenset(), ())
    assert await callers.caller(trust, token(iss="https://other.test")) is None
    for text in ("", "a.b.c", "dgm_1_2", token(iss=None), token()[1:]):
        assert await callers.caller(trust, text) is None


def forged(algorithm: str, secret: bytes) -> str:
    """Return a token whose header has an algorithm that no library signs with."""

    def part(value: object) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    claims = {"iss": ISSUER, "aud": "dragoman", "sub": "eve", "exp": time.time() + DAY_S, "groups": "ops"}
    content = part({"alg": algorithm, "typ": "JWT", "kid": "a"}) + b"." + part(claims)
    signature = hmac.digest(secret, content, hashlib.sha256) if secret else b""
    return (content + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


PUBLIC_PEM = EC_KEY.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)
STRANGER = ec.generate_private_key(ec.SECP256R1())


WRONG = [
    (token(exp=time.time() - 31), "has expired"),
    (token(nbf=time.time() + DAY_S), "is not valid yet"),
    (token(aud="other"), "is for another audience"),
    (token(aud=["other", "more"]), "is for another audience"),
    (token(exp=None), "lacks one of the claims"),
    (token(aud=None), "lacks one of the claims"),
    (token(sub=None), "lacks one of the claims"),
    (token(sub=""), "unusable subject"),
    (token(sub="a\nb"), "unusable subject"),
    (token(sub="a" * 256), "unusable subject"),
    (token(kid="c"), "a key that is not known"),
    (token(kid=None), "a key that is not known"),
    (token(STRANGER), "has a wrong signature"),
    (token(algorithm="ES256", kid="b"), "has an algorithm that is not allowed"),
    (token(RSA_KEY, kid="b", algorithm="RS512"), "has an algorithm that is not allowed"),
    (forged("none", b""), "has an algorithm that is not allowed"),
    (forged("None", b""), "has an algorithm that is not allowed"),
    (forged("HS256", PUBLIC_PEM), "has an algorithm that is not allowed"),
]


@pytest.mark.parametrize(("text", "why"), WRONG, ids=[str(number) for number in range(len(WRONG))])
async def test_what_is_not_right_is_refused_with_a_reason(text: str, why: str, file: Path) -> None:
    with pytest.raises(JwtError, match=why) as refused:
        await JwtCallers().caller(trusting(file), text)
    assert "alice" not in str(refused.value)
    assert text.split(".")[1] not in str(refused.value)


async def test_clocks_may_differ_a_little(file: Path) -> None:
    now = time.time()
    for text in (token(exp=now - 20), token(nbf=now + 20)):
        assert await JwtCallers().caller(trusting(file), text) is not None
        with pytest.raises(JwtError):
            await JwtCallers().caller(trusting(file, "clock_skew_s = 0"), text)


def test_an_issuer_has_no_symmetric_algorithm_and_one_row(file: Path) -> None:
    with pytest.raises(AddressError, match="Invalid enum value 'HS256'"):
        trusting(file, 'algorithms = ["HS256"]')
    with pytest.raises(AddressError, match="Invalid enum value 'none'"):
        trusting(file, 'algorithms = ["none"]')
    row = f'[[issuers]]\nname = "n"\nissuer = "{ISSUER}"\naudience = "d"\n'
    with pytest.raises(AddressError, match="two issuers have the same name"):
        parse_trust(Path("f"), (row + row).encode())


async def test_a_file_of_keys_is_read_again_when_it_has_changed(file: Path) -> None:
    callers, trust, fresh = JwtCallers(), trusting(file), ec.generate_private_key(ec.SECP256R1())
    assert await callers.caller(trust, token()) is not None
    with pytest.raises(JwtError, match="not known"):
        await callers.caller(trust, token(fresh, kid="new"))
    file.write_text(json.dumps(key_set(new=fresh)))
    assert await callers.caller(trust, token(fresh, kid="new")) is not None
    assert await callers.caller(trust, token(fresh, kid=None)) is not None, "the only key"
    with pytest.raises(JwtError, match="not known"):
        await callers.caller(trust, token())
    file.write_text("{ half")
    assert await callers.caller(trust, token(fresh, kid="new")) is not None, "the last ones stay"


class Provider(http.server.BaseHTTPRequestHandler):
    """An OpenID provider on the loopback interface."""

    keys: dict[str, Any]
    is_down = False
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.is_down or self.path == "/gone":
            self.send_error(503)
            return
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/keys")
            self.end_headers()
            return
        where = f"http://{self.headers['Host']}"
        known = {"issuer": where, "jwks_uri": f"{where}/keys"}
        data = json.dumps(known if self.path.startswith("/.well-known") else self.keys).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_args: object) -> None:
        """Print nothing."""


@pytest.fixture
def provider() -> Iterator[tuple[type[Provider], str]]:
    kind = type("Own", (Provider,), {"keys": key_set(a=EC_KEY), "asked": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield kind, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


async def test_keys_at_a_url_are_cached_rotated_and_bounded(provider: tuple[type[Provider], str]) -> None:
    kind, url = provider
    now = [0.0]
    callers, trust = JwtCallers(lambda: now[0]), trusting("", issuer=url)
    fresh = ec.generate_private_key(ec.SECP256R1())

    async def accepted(key: Any, kid: str) -> bool:
        try:
            return await callers.caller(trust, token(key, kid=kid, iss=url)) is not None
        except JwtError:
            return False

    for _ in range(3):
        assert await accepted(EC_KEY, "a")
    assert kind.asked == ["/.well-known/openid-configuration", "/keys"], "found by discovery, and cached"
    kind.keys = key_set(a=EC_KEY, new=fresh)
    assert not await accepted(fresh, "new"), "not with each unknown key"
    assert len(kind.asked) == 2
    now[0] += 11
    assert await accepted(fresh, "new")
    assert len(kind.asked) == 4
    kind.keys = key_set(new=fresh)
    assert await accepted(EC_KEY, "a")
    now[0] += 301
    assert not await accepted(EC_KEY, "a"), "withdrawn"
    kind.is_down = True
    now[0] += 3000
    assert await accepted(fresh, "new"), "the last ones stay, but not for ever"
    now[0] += 700
    assert not await accepted(fresh, "new")
    kind.is_down = False
    now[0] += 11
    assert await accepted(fresh, "new")


def test_keys_come_by_tls_from_no_other_place(provider: tuple[type[Provider], str], tmp_path: Path) -> None:
    _, url = provider
    assert fetch_keys(KeySource(url, f"{url}/keys"))["keys"]
    for place, why in (
        ("http://192.0.2.1/keys", "must be https"),
        (f"{url}/gone", "it answered 503"),
        (f"{url}/moved", "it answered 302"),
        (url.replace("http:", "https:"), "cannot be read"),
        (str(tmp_path / "none.json"), "cannot be read"),
        (f"https://{'a' * 70}.example/keys", "cannot be read: Unicode"),
        ("http://127.0.0.1:port/keys", "cannot be read: InvalidURL"),
        ("file://localhost/etc/passwd", "must be https"),
    ):
        with pytest.raises(AddressError, match=why):
            fetch_keys(KeySource(url, place))
    with pytest.raises(AddressError, match="another issuer's"):
        fetch_keys(KeySource(f"{url}/", ""))
