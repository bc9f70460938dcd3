-- 200,000 rows of the years before: they are there when the gateway is started, and no change tells of them.
INSERT INTO customers (id, name, email, active, birthday, call_at, rating, balance, profile, notes, avatar, tags, reference, fax,
                       created_at)
SELECT id, 'Old ' || id, id || '@old.example', id % 3 > 0, date '1950-01-01' + id % 18000, time '08:00' + id % 600 * interval '1 minute',
       CASE id % 100 WHEN 0 THEN 'NaN' WHEN 1 THEN 'Infinity' ELSE sqrt(id) END, id / 7.0, jsonb_build_object('visits', id % 100),
       CASE WHEN id % 20 = 0 THEN repeat(md5(id::text), 100) END, decode(md5(id::text), 'hex'), ARRAY['old', NULL, 'no. ' || id],
       md5(id::text)::uuid, '+49 30 ' || id, timestamptz '2020-01-01 00:00Z' + id * interval '1 hour'
FROM generate_series(1, 10000) AS id;

INSERT INTO orders (id, customer_id, status, placed_at, due_on, total, weight, lots, letter)
SELECT id, 1 + id % 9000, (enum_range(NULL::order_status))[1 + id % 4], timestamp '2021-01-01' + id * interval '10 minutes',
       CASE id % 50 WHEN 0 THEN 'infinity' WHEN 1 THEN NULL ELSE date '2021-01-01' + id % 900 END, id % 100000 / 100.0, 1.0 / id,
       ARRAY[id, -id], CASE WHEN id % 100 = 0 THEN repeat(md5(id::text), 100) END
FROM generate_series(1, 40000) AS id;

INSERT INTO items (order_id, line, sku, quantity, price, discount, gift)
SELECT 1 + n % 40000, n / 40000, 'old-' || n % 100, n % 1000, n % 9999 / 100.0, CASE WHEN n % 5 > 0 THEN 0.1 END, n % 7 = 0
FROM generate_series(0, 109999) AS n;

INSERT INTO payments (id, order_id, amount, rate, paid_at, receipt, signature)
SELECT md5('old ' || id)::uuid, id, id % 100000 / 100.0, 1.0 / id, timestamptz '2021-02-01 00:00Z' + id * interval '10 minutes',
       format('{"no" : %s,  "paid": "%s"}', id, id)::json, decode(md5(id::text), 'hex')
FROM generate_series(1, 38000) AS id;

INSERT INTO carts (id, skus, touched_at)
SELECT id, ARRAY['old', id::text], timestamp '2024-01-01' + id * interval '1 day' FROM generate_series(1, 90) AS id;

INSERT INTO visits (page, seconds, seen_at)
SELECT '/old?id=' || n, n / 10.0, timestamptz '2024-01-01 00:00Z' + n * interval '1 minute' FROM generate_series(1, 1910) AS n;
