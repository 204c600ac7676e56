-- What runs have spent of the operator's budgets.
-- depends: 0003.agents

CREATE TABLE spending (
    run_id         text NOT NULL,             -- empty: runs that were forgotten
    budget         text NOT NULL,             -- its name, and its currency
    value          text NOT NULL,
    since          bigint NOT NULL,           -- seconds since the epoch; 0 for the period without an end
    until          bigint NOT NULL,
    cost           bigint NOT NULL,           -- billionths of the currency
    input_tokens   bigint NOT NULL,
    output_tokens  bigint NOT NULL,
    model_calls    bigint NOT NULL,
    tool_calls     bigint NOT NULL,
    runs           bigint NOT NULL,
    PRIMARY KEY (run_id, budget, value, since)
);
CREATE INDEX spending_by_account ON spending (budget, since, value);
