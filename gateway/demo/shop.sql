-- A small shop whose columns hold every everyday type. One table each for: the default replica identity (customers,
-- items, payments), REPLICA IDENTITY FULL (orders), TRUNCATE (carts), and no identity at all (visits).
CREATE TYPE order_status AS ENUM ('new', 'paid', 'sent', 'returned');

CREATE TABLE customers (
    id            bigint PRIMARY KEY,
    name          text NOT NULL,
    email         varchar(80),
    active        boolean NOT NULL,
    birthday      date,
    call_at       time,
    rating        real,
    balance       numeric(12,2),
    profile       jsonb,
    notes         text,
    avatar        bytea,
    tags          text[],
    reference     uuid,
    fax           text,
    created_at    timestamptz NOT NULL
);
-- Kept out of line and uncompressed, so that an update which does not touch it does not send it.
ALTER TABLE customers ALTER COLUMN notes SET STORAGE EXTERNAL;

CREATE TABLE orders (
    id            bigint PRIMARY KEY,
    customer_id   bigint NOT NULL REFERENCES customers,
    status        order_status NOT NULL,
    placed_at     timestamp NOT NULL,
    due_on        date,
    total         numeric(12,2),
    weight        double precision,
    lots          integer[],
    letter        text
);
ALTER TABLE orders ALTER COLUMN letter SET STORAGE EXTERNAL;
ALTER TABLE orders REPLICA IDENTITY FULL;

CREATE TABLE items (
    order_id      bigint NOT NULL REFERENCES orders,
    line          integer NOT NULL,
    sku           text NOT NULL,
    quantity      smallint NOT NULL,
    price         numeric(12,2) NOT NULL,
    discount      real,
    gift          boolean,
    PRIMARY KEY (order_id, line)
);

CREATE TABLE payments (
    id            uuid PRIMARY KEY,
    order_id      bigint NOT NULL,
    amount        numeric(12,2) NOT NULL,
    rate          numeric,
    paid_at       timestamptz NOT NULL,
    receipt       json,
    signature     bytea
);

CREATE TABLE carts (
    id            integer PRIMARY KEY,
    skus          text[] NOT NULL,
    touched_at    timestamp NOT NULL
);

CREATE TABLE visits (
    page          text NOT NULL,
    seconds       double precision,
    seen_at       timestamptz NOT NULL
);

CREATE PUBLICATION walgate FOR TABLE customers, orders, items, payments, carts, visits;
