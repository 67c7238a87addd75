-- Flow control: limits, fair queues and max_pending; windows and scopes of dedup keys. README.md describes the tables and the
-- locks.
-- Readable since layout 7.

ALTER TABLE dayjob.jobs
    ADD COLUMN turn bigint NOT NULL DEFAULT 0,
    ADD COLUMN limits jsonb,
    ADD COLUMN limited_by text COLLATE "C",
    ADD COLUMN dedup_scope text COLLATE "C";

ALTER TABLE dayjob.reserved_ids ADD COLUMN job uuid;

-- Return the name of the window of a dedup key; Insertion.window in Python is the same.
CREATE FUNCTION dayjob.window_of(scope text, key text) RETURNS uuid
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$
        SELECT encode(substr(sha256(
            convert_to(scope, 'UTF8') || decode('00', 'hex') || convert_to(key, 'UTF8')
        ), 1, 16), 'hex')::uuid
    $$;

ALTER TABLE dayjob.counters ADD COLUMN limited bigint NOT NULL DEFAULT 0;

CREATE TABLE dayjob.buckets (
    name text COLLATE "C" PRIMARY KEY,
    running bigint NOT NULL DEFAULT 0,
    tat bigint NOT NULL DEFAULT 0,
    due bigint
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);

CREATE INDEX buckets_due ON dayjob.buckets (due) WHERE due IS NOT NULL;

CREATE TABLE dayjob.limited_queues (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue text COLLATE "C" NOT NULL
);

CREATE INDEX limited_queues_queue ON dayjob.limited_queues (queue);

CREATE TABLE dayjob.queue_turns (
    queue text COLLATE "C" PRIMARY KEY,
    turn bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE dayjob.tenant_turns (
    queue text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    turn bigint NOT NULL DEFAULT 1,
    PRIMARY KEY (queue, tenant)
) WITH (fillfactor = 70);

-- The parts of a queue in which no job is pending: in each, for one priority, the jobs of turn 0 or those of later turns, up to a
-- (turn, id). Claims leave them out, because they are full of dead index entries. README.md describes when a part may grow.
CREATE TABLE dayjob.scan_hints (
    queue text COLLATE "C" PRIMARY KEY,
    snapshot pg_snapshot NOT NULL,
    raised_at bigint NOT NULL,
    search_at bigint NOT NULL,
    bound_xid xid8 NOT NULL,
    bound_at bigint NOT NULL,
    bound_turn bigint NOT NULL,
    priorities bigint[] NOT NULL,
    first_turns bigint[] NOT NULL,
    turns bigint[] NOT NULL,
    ids uuid[] NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);

-- A place in the order of the jobs of a queue and priority.
CREATE TYPE dayjob.place AS (turn bigint, id uuid);

-- A job that has left a state, and the units that its run has used beyond those that its claim took.
CREATE TYPE dayjob.departure AS (state text, limits jsonb, limited_by text, charges jsonb);

CREATE FUNCTION dayjob.units_of(limits jsonb, bucket text) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
        SELECT coalesce((SELECT (pair ->> 1)::bigint FROM jsonb_array_elements(limits) AS pair WHERE pair ->> 0 = bucket), 1)
    $$;

-- Return the microseconds in which a rate admits the units.
CREATE FUNCTION dayjob.cost(units bigint, per bigint, rate bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT CASE WHEN rate IS NULL THEN 0 ELSE div(units::numeric * per + rate - 1, rate)::bigint END $$;

-- Return the settings of a bucket: those of its whole name, else those of its limit. burst is a cost.
CREATE FUNCTION dayjob.settings_of(bucket text) RETURNS TABLE (most bigint, rate bigint, per bigint, burst bigint)
    LANGUAGE sql STABLE
    AS $$
        SELECT (stored.value ->> 'running')::bigint, (stored.value ->> 'rate')::bigint, given.per,
            dayjob.cost(coalesce((stored.value ->> 'burst')::bigint, 1), given.per, (stored.value ->> 'rate')::bigint)
        FROM (SELECT 1) AS always
        LEFT JOIN LATERAL (
            SELECT convert_from(documents.value, 'UTF8')::jsonb AS value
            FROM dayjob.documents
            WHERE documents.kind = 'limit' AND documents.name IN (bucket, split_part(bucket, ':', 1))
            ORDER BY length(documents.name) DESC
            LIMIT 1
        ) AS stored ON true
        CROSS JOIN LATERAL (SELECT coalesce((stored.value ->> 'per')::bigint, 1000000) AS per) AS given
    $$;

-- Every transaction that reads settings and changes lines holds this lock. set_limit waits for all of them.
CREATE FUNCTION dayjob.share_limits() RETURNS void
    LANGUAGE sql VOLATILE
    AS $$ SELECT pg_advisory_xact_lock_shared('dayjob.buckets'::regclass::oid::integer, 0) $$;

-- Lock buckets in the order of their names. Missing ones are created.
CREATE FUNCTION dayjob.lock_buckets(names text[]) RETURNS void
    LANGUAGE sql VOLATILE
    AS $$
        INSERT INTO dayjob.buckets (name)
        SELECT DISTINCT name COLLATE "C" FROM unnest(names) AS name ORDER BY 1
        ON CONFLICT (name) DO UPDATE SET running = 0 WHERE false
    $$;

-- Make the first jobs of the lines of locked buckets pending, while they fit and take fewer units than were freed.
-- Then set the due time of each bucket, and remove idle ones.
-- topics are "0 pending QUEUE" and "0 scheduled ", as in the replies of settlements.
-- A job that another transaction has locked is about to leave its line. The jobs behind it are not woken: they would join the
-- line again. If that transaction is rolled back, the line is woken again after a second.
CREATE FUNCTION dayjob.wake_lines(
    moment bigint, names text[], freed bigint[], at_most bigint, OUT topics text[], OUT woken bigint
)
    LANGUAGE plpgsql VOLATILE
    AS $$
    DECLARE
        bucket record;
        job record;
        line text;
        unused bigint;
        running_then bigint;
        tat_then bigint;
        due_then bigint;
        ids uuid[];
        is_open boolean;
    BEGIN
        topics := '{}';
        woken := 0;
        FOR bucket IN
            SELECT given.name, given.freed, buckets.running, buckets.tat, buckets.due,
                settings.most, settings.rate, settings.per, settings.burst
            FROM unnest(names, freed) AS given (name, freed)
            JOIN dayjob.buckets ON buckets.name = ANY (ARRAY[given.name])
            CROSS JOIN LATERAL dayjob.settings_of(given.name) AS settings
            WHERE buckets.due IS NOT NULL
                OR EXISTS (SELECT FROM dayjob.jobs WHERE jobs.state = 'limited' AND jobs.limited_by = given.name OFFSET 0)
            ORDER BY given.name COLLATE "C"
        LOOP
            due_then := NULL;
            line := '';
            LOOP
                SELECT jobs.queue INTO line FROM dayjob.jobs
                WHERE jobs.state = 'limited' AND jobs.limited_by = bucket.name AND jobs.queue > line
                ORDER BY jobs.queue
                LIMIT 1;
                EXIT WHEN NOT FOUND;
                unused := least(bucket.freed, at_most - woken);
                running_then := bucket.running;
                tat_then := bucket.tat;
                ids := '{}';
                is_open := unused > 0;
                FOR job IN
                    WITH seen AS MATERIALIZED (
                        SELECT jobs.ctid AS place, jobs.id, jobs.limits FROM dayjob.jobs
                        WHERE jobs.state = 'limited' AND jobs.limited_by = bucket.name AND jobs.queue = line
                        ORDER BY jobs.priority, jobs.turn, jobs.id
                        LIMIT greatest(unused, 0)
                    )
                    SELECT seen.id, dayjob.units_of(seen.limits, bucket.name) AS units, free.place IS NULL AS is_locked
                    FROM seen
                    LEFT JOIN LATERAL (
                        SELECT jobs.ctid AS place FROM dayjob.jobs
                        WHERE jobs.ctid = seen.place AND jobs.state = 'limited'
                        FOR UPDATE SKIP LOCKED
                    ) AS free ON true
                LOOP
                    EXIT WHEN job.is_locked;
                    IF ids = '{}' AND unused > 0 THEN -- Room that the first job could not use, since it needs more than one unit.
                        unused := unused + job.units - 1;
                    END IF;
                    IF unused <= 0 OR (running_then > 0 AND running_then + job.units > bucket.most)
                        OR tat_then - greatest(bucket.burst - dayjob.cost(job.units, bucket.per, bucket.rate), 0) > moment
                            AND bucket.rate IS NOT NULL
                    THEN
                        is_open := false;
                        EXIT;
                    END IF;
                    running_then := running_then + job.units;
                    IF bucket.rate IS NOT NULL THEN
                        tat_then := greatest(tat_then, moment) + dayjob.cost(job.units, bucket.per, bucket.rate);
                    END IF;
                    unused := unused - job.units;
                    ids := ids || job.id;
                END LOOP;
                IF ids <> '{}' THEN
                    UPDATE dayjob.jobs SET state = 'pending', limited_by = NULL, late = pg_current_xact_id()
                    WHERE jobs.id = ANY (ids);
                    INSERT INTO dayjob.counters (queue, limited, pending)
                    VALUES (line, -cardinality(ids), cardinality(ids));
                    topics := topics || ('0 pending ' || line);
                    woken := woken + cardinality(ids);
                END IF;
                IF bucket.rate IS NOT NULL OR (is_open AND unused > 0) THEN
                    SELECT dayjob.units_of(jobs.limits, bucket.name) AS units INTO job FROM dayjob.jobs
                    WHERE jobs.state = 'limited' AND jobs.limited_by = bucket.name AND jobs.queue = line
                    ORDER BY jobs.priority, jobs.turn, jobs.id
                    LIMIT 1;
                    IF FOUND AND bucket.rate IS NULL THEN
                        due_then := least(due_then, moment + 1000000);
                    ELSIF FOUND AND (bucket.most IS NULL OR bucket.running = 0 OR bucket.running + job.units <= bucket.most) THEN
                        tat_then := bucket.tat - greatest(bucket.burst - dayjob.cost(job.units, bucket.per, bucket.rate), 0);
                        due_then := least(due_then, CASE WHEN tat_then > moment THEN tat_then
                            ELSE least(
                                moment + greatest(dayjob.cost(job.units, bucket.per, bucket.rate), 1),
                                CASE WHEN bucket.due > moment THEN bucket.due END
                            ) END);
                    END IF;
                END IF;
            END LOOP;
            IF due_then IS DISTINCT FROM bucket.due THEN
                UPDATE dayjob.buckets SET due = due_then WHERE buckets.name = bucket.name;
                IF due_then IS NOT NULL THEN
                    topics := topics || '0 scheduled '::text;
                END IF;
            END IF;
        END LOOP;
        DELETE FROM dayjob.buckets
        WHERE buckets.name = ANY (names) AND buckets.running = 0 AND buckets.tat <= moment AND buckets.due IS NULL;
    END
    $$;

-- Give back the room of jobs that have left a state, correct rates by the charges, and wake lines. Return the topics.
-- A bucket that becomes idle is removed without an update, if no line waits for it.
CREATE FUNCTION dayjob.leave_limits(given bigint, departed dayjob.departure[]) RETURNS text[]
    LANGUAGE plpgsql VOLATILE
    AS $$
    DECLARE
        moment bigint;
        names text[];
        ended bigint[];
        freed bigint[];
        places tid[];
        used bigint[];
        tats bigint[];
        idle tid[];
        have_run boolean;
        have_charges boolean;
        has_due boolean;
        charge record;
    BEGIN
        PERFORM dayjob.share_limits();
        SELECT bool_and(job.state = 'running'), bool_or(job.charges IS NOT NULL) INTO have_run, have_charges
        FROM unnest(departed) AS job;
        SELECT array_agg(summed.name), array_agg(summed.ended), array_agg(summed.freed)
        INTO names, ended, freed
        FROM (
            SELECT part.name COLLATE "C" AS name, sum(part.ended)::bigint AS ended, sum(part.freed)::bigint AS freed
            FROM (
                SELECT pair ->> 0 AS name, CASE WHEN job.state = 'running' THEN (pair ->> 1)::bigint ELSE 0 END AS ended,
                    (pair ->> 1)::bigint AS freed
                FROM unnest(departed) AS job CROSS JOIN LATERAL jsonb_array_elements(job.limits) AS pair
                WHERE job.state IN ('running', 'pending') OR (job.state = 'limited' AND pair ->> 0 = job.limited_by)
                UNION ALL
                SELECT pair ->> 0, 0, greatest(-(pair ->> 1)::bigint, 0)
                FROM unnest(departed) AS job CROSS JOIN LATERAL jsonb_array_elements(job.charges) AS pair
                CROSS JOIN LATERAL dayjob.settings_of(pair ->> 0) AS settings
                WHERE have_charges AND settings.rate IS NOT NULL
            ) AS part
            GROUP BY 1
            ORDER BY 1
        ) AS summed;
        IF names IS NULL THEN
            RETURN '{}';
        END IF;
        IF NOT have_run OR have_charges THEN
            PERFORM dayjob.lock_buckets(names);
        END IF;
        LOOP
            SELECT array_agg(bucket.ctid), array_agg(bucket.running), array_agg(bucket.tat), bool_or(bucket.due IS NOT NULL)
            INTO places, used, tats, has_due
            FROM (
                SELECT buckets.ctid, buckets.running, buckets.tat, buckets.due FROM dayjob.buckets
                WHERE buckets.name = ANY (names)
                ORDER BY buckets.name
                FOR UPDATE
            ) AS bucket;
            EXIT WHEN cardinality(places) = cardinality(names);
            PERFORM dayjob.lock_buckets(names);
        END LOOP;
        moment := dayjob.now_us(given);
        IF NOT (has_due OR have_charges) AND NOT EXISTS (
            SELECT FROM dayjob.jobs WHERE jobs.state = 'limited' AND jobs.limited_by = ANY (names)
        ) THEN
            idle := ARRAY(
                SELECT bucket.place FROM unnest(places, used, tats, ended) AS bucket (place, running, tat, ended)
                WHERE bucket.running <= bucket.ended AND bucket.tat <= moment
            );
            DELETE FROM dayjob.buckets WHERE buckets.ctid = ANY (idle);
            IF cardinality(idle) = cardinality(names) THEN
                RETURN '{}';
            END IF;
        END IF;
        UPDATE dayjob.buckets SET running = greatest(buckets.running - bucket.ended, 0)
        FROM unnest(places, ended) AS bucket (place, ended)
        WHERE buckets.ctid = bucket.place AND bucket.ended > 0;
        IF idle IS NOT NULL THEN
            RETURN '{}';
        END IF;
        FOR charge IN
            SELECT pair ->> 0 AS name, (pair ->> 1)::bigint AS units,
                dayjob.cost(abs((pair ->> 1)::bigint), settings.per, settings.rate) AS cost
            FROM unnest(departed) WITH ORDINALITY AS job (state, limits, limited_by, charges, number)
            CROSS JOIN LATERAL jsonb_array_elements(job.charges) AS pair
            CROSS JOIN LATERAL dayjob.settings_of(pair ->> 0) AS settings
            WHERE settings.rate IS NOT NULL
            ORDER BY job.number
        LOOP
            UPDATE dayjob.buckets
            SET tat = CASE WHEN charge.units > 0 THEN greatest(tat, moment) + charge.cost ELSE greatest(tat - charge.cost, 0) END
            WHERE buckets.name = charge.name;
        END LOOP;
        RETURN (SELECT topics FROM dayjob.wake_lines(moment, names, freed, 10000000));
    END
    $$;

-- Wake the lines whose tokens are due. Return the number of jobs that became pending, and the topics.
CREATE FUNCTION dayjob.wake_due(given bigint, at_most bigint) RETURNS TABLE (woken bigint, topics text[])
    LANGUAGE plpgsql VOLATILE
    AS $$
    DECLARE
        names text[];
    BEGIN
        PERFORM dayjob.share_limits();
        names := ARRAY(
            SELECT buckets.name FROM dayjob.buckets WHERE buckets.due <= dayjob.now_us(given) ORDER BY buckets.due LIMIT at_most
        );
        PERFORM dayjob.lock_buckets(names);
        RETURN QUERY SELECT lines.woken, lines.topics
            FROM dayjob.wake_lines(dayjob.now_us(given), names, array_fill(10000::bigint, ARRAY[cardinality(names)]), 10000000) AS lines;
    END
    $$;

-- Write a limit and wake the lines of its buckets. Return the number of jobs that became pending, and the topics.
CREATE FUNCTION dayjob.set_limit(given bigint, limit_name text, settings bytea) RETURNS TABLE (woken bigint, topics text[])
    LANGUAGE plpgsql VOLATILE
    AS $$
    DECLARE
        names text[] := '{}';
        bucket text;
    BEGIN
        PERFORM pg_advisory_xact_lock('dayjob.buckets'::regclass::oid::integer, 0);
        IF settings IS NULL THEN
            DELETE FROM dayjob.documents WHERE documents.kind = 'limit' AND documents.name = limit_name;
        ELSE
            INSERT INTO dayjob.documents (kind, name, written_at, value)
            VALUES ('limit', limit_name, dayjob.now_us(given), settings)
            ON CONFLICT (kind, name) DO UPDATE SET written_at = excluded.written_at, value = excluded.value;
        END IF;
        FOREACH bucket IN ARRAY ARRAY[limit_name, limit_name || ':'] LOOP
            IF EXISTS (SELECT FROM dayjob.jobs WHERE jobs.state = 'limited' AND jobs.limited_by = bucket) THEN
                names := names || bucket;
            END IF;
        END LOOP;
        LOOP
            SELECT jobs.limited_by INTO bucket FROM dayjob.jobs
            WHERE jobs.state = 'limited' AND jobs.limited_by > bucket AND jobs.limited_by < limit_name || ';'
            ORDER BY jobs.limited_by
            LIMIT 1;
            EXIT WHEN NOT FOUND;
            names := names || bucket;
        END LOOP;
        PERFORM dayjob.lock_buckets(names);
        RETURN QUERY SELECT lines.woken, lines.topics
            FROM dayjob.wake_lines(dayjob.now_us(given), names, array_fill(10000::bigint, ARRAY[cardinality(names)]), 10000) AS lines;
    END
    $$;

-- The end of a transaction that has stored jobs: mark their queues, move those to lines that have to join one, and give back
-- the room of settled jobs. Return the topics. A caller's transaction joins no line: it would hold the locks until its end.
CREATE FUNCTION dayjob.finish_limits(given bigint, departed dayjob.departure[], ids uuid[], may_join boolean) RETURNS text[]
    LANGUAGE plpgsql VOLATILE
    AS $$
    DECLARE
        names text[];
    BEGIN
        INSERT INTO dayjob.limited_queues (queue)
        SELECT DISTINCT jobs.queue FROM dayjob.jobs
        WHERE jobs.id = ANY (ids)
            AND NOT EXISTS (SELECT FROM dayjob.limited_queues AS present WHERE present.queue = jobs.queue);
        IF may_join THEN
            PERFORM dayjob.share_limits();
            names := ARRAY(
                SELECT DISTINCT pair ->> 0
                FROM dayjob.jobs AS new CROSS JOIN LATERAL jsonb_array_elements(new.limits) AS pair
                WHERE new.id = ANY (ids) AND new.state || '' = 'pending' AND EXISTS (
                    SELECT FROM dayjob.jobs
                    WHERE jobs.state = 'limited' AND jobs.limited_by = pair ->> 0 AND jobs.queue = new.queue
                    OFFSET 0
                )
            );
            IF names <> '{}' THEN
                PERFORM dayjob.lock_buckets(names || ARRAY(
                    SELECT pair ->> 0 FROM unnest(departed) AS job CROSS JOIN LATERAL jsonb_array_elements(job.limits) AS pair
                ));
                WITH joined AS (
                    UPDATE dayjob.jobs SET state = 'limited', limited_by = found.name
                    FROM (
                        SELECT new.id, (
                            SELECT pair ->> 0
                            FROM jsonb_array_elements(new.limits) WITH ORDINALITY AS part (pair, number)
                            CROSS JOIN LATERAL (
                                SELECT jobs.priority, jobs.turn, jobs.id FROM dayjob.jobs
                                WHERE jobs.state = 'limited' AND jobs.limited_by = pair ->> 0 AND jobs.queue = new.queue
                                ORDER BY jobs.priority, jobs.turn, jobs.id
                                LIMIT 1
                            ) AS head
                            WHERE pair ->> 0 = ANY (names)
                                AND (head.priority, head.turn, head.id) < (new.priority, new.turn, new.id)
                            ORDER BY part.number
                            LIMIT 1
                        ) AS name
                        FROM dayjob.jobs AS new
                        WHERE new.id = ANY (ids) AND new.state || '' = 'pending' AND new.limits IS NOT NULL
                    ) AS found
                    WHERE jobs.id = ANY (ARRAY[found.id]) AND found.name IS NOT NULL
                    RETURNING jobs.queue
                )
                INSERT INTO dayjob.counters (queue, pending, limited)
                SELECT joined.queue, -count(*), count(*) FROM joined GROUP BY joined.queue;
            END IF;
        END IF;
        RETURN coalesce(dayjob.leave_limits(given, departed), '{}');
    END
    $$;

-- Store the parts of a queue that the next claims leave out, after a claim that has examined every pending job up to the last place.
-- skipped: the claim skipped the old parts. unexamined: the priorities with late jobs there that the claim did not examine.
-- A part ends at the bound of an earlier claim, if all transactions have ended that were under way then, or at least 30 s ago:
-- then this claim has seen every job before the bound that is not marked as late.
CREATE FUNCTION dayjob.raise_hints(
    from_queue text, old dayjob.scan_hints, skipped boolean, seen pg_snapshot, started bigint, seen_priorities bigint[], unexamined bigint[],
    last_priority bigint, last dayjob.place, grace bigint, search_interval bigint
) RETURNS void
    LANGUAGE plpgsql VOLATILE
    AS $$
    DECLARE
        zero constant uuid := '00000000-0000-0000-0000-000000000000';
        is_confirmed boolean;
        bound_id uuid := zero;
        bound_turn bigint := 0;
        turn_now bigint := coalesce((SELECT queue_turns.turn FROM dayjob.queue_turns WHERE queue_turns.queue = from_queue), 0);
        new dayjob.scan_hints;
    BEGIN
        IF started < old.raised_at THEN
            old := NULL;
        END IF;
        is_confirmed := coalesce(old.bound_xid <= pg_snapshot_xmin(seen) OR old.bound_at < started - 30000000, false);
        IF is_confirmed THEN
            bound_id := rpad(lpad(to_hex((old.bound_at - grace) / 1000), 12, '0'), 32, '0')::uuid;
            bound_turn := old.bound_turn - 1;
        END IF;
        SELECT coalesce(array_agg(part.priority), '{}'), coalesce(array_agg(part.first_turn), '{}'),
            coalesce(array_agg((part.place).turn), '{}'), coalesce(array_agg((part.place).id), '{}')
        INTO new.priorities, new.first_turns, new.turns, new.ids
        FROM (
            SELECT known.priority, known.first_turn, CASE
                WHEN known.priority < last_priority THEN greatest(known.place, known.bound)
                WHEN known.priority = last_priority AND known.is_certain THEN greatest(known.place, least(known.bound, last))
                WHEN known.priority = last_priority THEN least(greatest(known.place, known.bound), last)
                WHEN known.is_certain THEN known.place
            END AS place
            FROM (
                SELECT priorities.priority, classes.first_turn, skipped AND priorities.priority <> ALL (unexamined) AS is_certain,
                    ROW(coalesce(parts.turn, classes.first_turn), coalesce(parts.id, zero))::dayjob.place AS place,
                    CASE classes.first_turn WHEN 0 THEN ROW(0, bound_id)::dayjob.place
                        ELSE ROW(bound_turn, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid)::dayjob.place
                    END AS bound
                FROM (
                    SELECT DISTINCT unnest(old.priorities || seen_priorities) AS priority ORDER BY 1 LIMIT 64
                ) AS priorities
                CROSS JOIN (VALUES (0::bigint), (1)) AS classes (first_turn)
                LEFT JOIN unnest(old.priorities, old.first_turns, old.turns, old.ids) AS parts (priority, first_turn, turn, id)
                    ON parts.priority = priorities.priority AND parts.first_turn = classes.first_turn
            ) AS known
            ORDER BY known.priority, known.first_turn
        ) AS part
        WHERE part.place > ROW(part.first_turn, zero)::dayjob.place;
        IF is_confirmed OR old.queue IS NULL THEN
            new.bound_xid := pg_snapshot_xmax(seen);
            new.bound_at := started;
            new.bound_turn := turn_now;
        ELSE
            new.bound_xid := old.bound_xid;
            new.bound_at := old.bound_at;
            new.bound_turn := old.bound_turn;
        END IF;
        new.queue := from_queue;
        new.snapshot := seen;
        new.raised_at := started;
        new.search_at := CASE WHEN skipped THEN old.search_at
            ELSE started + greatest(search_interval, 50 * (dayjob.now_us(NULL) - started)) END;
        INSERT INTO dayjob.scan_hints VALUES (new.*)
        ON CONFLICT (queue) DO UPDATE SET
            snapshot = excluded.snapshot, raised_at = excluded.raised_at, search_at = excluded.search_at,
            bound_xid = excluded.bound_xid, bound_at = excluded.bound_at, bound_turn = excluded.bound_turn,
            priorities = excluded.priorities, first_turns = excluded.first_turns, turns = excluded.turns, ids = excluded.ids;
    END
    $$;

-- Claim jobs from queues with limits or turns, in the order of (priority, turn, id). Return the jobs, then the topics: each is the
-- task of a row without an id.
-- Claims of such a queue run one after the other: with SKIP LOCKED, the second job of a key would overtake the first.
-- A job that another transaction has locked is skipped, and holds back the later jobs that share a bucket with it: they stay
-- pending. So does a job that became pending while this claim waited for a bucket: the snapshot of the pick does not have it.
-- The row "0 locked QUEUE" requests another claim after some time. Skipped jobs are searched for only if the server's count of
-- rows read by the index differs from the number of picked ones, which is always so without track_counts.
-- Buckets are locked in the order of their names after the jobs. A claim that goes on after jobs without room locks the
-- buckets of the next ones only if it does not have to wait.
-- If the jobs together fit into each of their buckets, and none has a line or a rate, then all are claimed at once. Else they are
-- examined one after the other.
-- A missing bucket is created with the units that this will take, which saves its update.
-- Jobs are updated by their places in the table, where they are locked.
-- A claim that reads many more index blocks than it needs raises the hints of its queue, every 20 ms at most. With hints it scans the
-- other parts of the queue, and the places of late jobs in the hidden ones.
CREATE FUNCTION dayjob.claim_limited(
    given bigint, wanted text[], leases bigint[], at_most bigint, by_worker text, claim_key uuid, most_bytes bigint,
    most_blocked bigint, wasted_blocks bigint, grace bigint, search_interval bigint, most_late bigint
) RETURNS SETOF dayjob.jobs
    LANGUAGE plpgsql VOLATILE
    AS $$
    DECLARE
        moment bigint;
        from_queue text;
        candidate record;
        picked tid[];
        places tid[];
        found bigint;
        found_size bigint;
        found_turn bigint;
        found_limits jsonb[];
        snapshot pg_snapshot;
        fetched bigint;
        read_before bigint;
        read bigint;
        read_for bigint;
        is_wasteful boolean;
        started bigint;
        hints dayjob.scan_hints;
        hides boolean;
        has_ended boolean;
        seen_priorities bigint[];
        from_priorities bigint[];
        from_turns bigint[];
        from_ids uuid[];
        until_priorities bigint[];
        until_turns bigint[];
        until_ids uuid[];
        hidden_priorities bigint[];
        hidden_turns bigint[];
        hidden_ids uuid[];
        must_look boolean;
        has_looked boolean;
        held text[];
        held_priorities bigint[];
        held_turns bigint[];
        held_ids uuid[];
        held_here bigint;
        late_names text[];
        late_priorities bigint[];
        late_turns bigint[];
        late_ids uuid[];
        last record;
        names text[];
        totals bigint[];
        counts bigint[];
        locked text[] := '{}';
        created text[];
        limit_names text[];
        limit_values jsonb[];
        settings jsonb[];
        used bigint[];
        tats bigint[];
        mosts bigint[];
        rates bigint[];
        pers bigint[];
        bursts bigint[];
        freed bigint[];
        head_priorities bigint[];
        head_turns bigint[];
        head_ids uuid[];
        after_priority bigint;
        after_turn bigint;
        after_id uuid;
        blocked tid[];
        blocked_by text[];
        blocker integer;
        blocked_here bigint;
        claimed tid[] := '{}';
        claimed_here bigint;
        last_turn bigint;
        size bigint := 0;
        examined bigint;
        place integer;
        fits_all boolean;
        is_full boolean := false;
        topics text[] := '{}';
        to_wake text[] := '{}';
        to_wake_freed bigint[] := '{}';
        announced dayjob.jobs;
    BEGIN
        PERFORM pg_advisory_xact_lock(hashtextextended(claim_key::text, 0)), dayjob.share_limits();
        PERFORM pg_advisory_xact_lock('dayjob.limited_queues'::regclass::oid::integer, hash)
        FROM (
            SELECT DISTINCT hashtext(limited_queues.queue) AS hash FROM dayjob.limited_queues
            WHERE limited_queues.queue = ANY (wanted)
            ORDER BY 1
        ) AS queues;
        moment := dayjob.now_us(given);
        FOREACH from_queue IN ARRAY wanted LOOP
            EXIT WHEN is_full;
            CONTINUE WHEN EXISTS (SELECT FROM dayjob.pauses WHERE pauses.queue = from_queue);
            after_id := NULL;
            snapshot := NULL;
            held := '{}';
            held_priorities := '{}';
            held_turns := '{}';
            held_ids := '{}';
            held_here := 0;
            blocked_here := 0;
            claimed_here := 0;
            last_turn := 0;
            examined := at_most - cardinality(claimed);
            started := dayjob.now_us(NULL);
            read := 0;
            read_for := 0;
            is_wasteful := false;
            has_ended := false;
            seen_priorities := '{}';
            hidden_priorities := '{}';
            SELECT * INTO hints FROM dayjob.scan_hints WHERE scan_hints.queue = from_queue;
            hides := coalesce(started >= hints.raised_at AND started < hints.search_at AND hints.priorities <> '{}', false);
            IF hides THEN
                read_before := pg_stat_get_xact_blocks_fetched('dayjob.jobs_late'::regclass);
                SELECT pg_current_snapshot(), count(*) <= most_late,
                    coalesce(array_agg(job.priority) FILTER (WHERE parts.turn IS NOT NULL), '{}'),
                    array_agg(job.turn) FILTER (WHERE parts.turn IS NOT NULL),
                    array_agg(job.id) FILTER (WHERE parts.turn IS NOT NULL)
                INTO snapshot, hides, hidden_priorities, hidden_turns, hidden_ids
                FROM (
                    SELECT pg_snapshot_xmax(hints.snapshot) AS first, '18446744073709551615'::xid8 AS last
                    UNION ALL
                    SELECT number, number FROM pg_snapshot_xip(hints.snapshot) AS number
                ) AS numbers
                CROSS JOIN LATERAL (
                    SELECT jobs.priority, jobs.turn, jobs.id FROM dayjob.jobs
                    WHERE jobs.queue = from_queue AND jobs.state = 'pending'
                        AND jobs.late >= numbers.first AND jobs.late <= numbers.last
                    LIMIT most_late + 1
                ) AS job
                LEFT JOIN unnest(hints.priorities, hints.first_turns, hints.turns, hints.ids) AS parts (priority, first_turn, turn, id)
                    ON parts.priority = job.priority AND (parts.first_turn = 0) = (job.turn = 0)
                        AND (job.turn, job.id) < (parts.turn, parts.id)
                        AND (job.turn, job.id) > (parts.first_turn, '00000000-0000-0000-0000-000000000000'::uuid);
                read := pg_stat_get_xact_blocks_fetched('dayjob.jobs_late'::regclass) - read_before;
            END IF;
            IF hides THEN
                SELECT array_agg(range.from_priority), array_agg(range.from_turn), array_agg(range.from_id),
                    array_agg(range.until_priority), array_agg(range.until_turn), array_agg(range.until_id)
                INTO from_priorities, from_turns, from_ids, until_priorities, until_turns, until_ids
                FROM (
                    SELECT coalesce(lag(parts.priority) OVER places, -1) AS from_priority,
                        coalesce(lag(parts.turn) OVER places, 0) AS from_turn,
                        coalesce(lag(parts.id) OVER places, '00000000-0000-0000-0000-000000000000') AS from_id,
                        parts.priority AS until_priority, parts.first_turn AS until_turn,
                        '00000000-0000-0000-0000-000000000000'::uuid AS until_id
                    FROM unnest(hints.priorities, hints.first_turns, hints.turns, hints.ids) AS parts (priority, first_turn, turn, id)
                    WINDOW places AS (ORDER BY parts.priority, parts.first_turn)
                    UNION ALL
                    SELECT hints.priorities[cardinality(hints.priorities)], hints.turns[cardinality(hints.priorities)],
                        hints.ids[cardinality(hints.priorities)], 9223372036854775807, 0, '00000000-0000-0000-0000-000000000000'
                    UNION ALL
                    SELECT late.priority, late.turn, late.id, late.priority, late.turn, late.id
                    FROM unnest(hidden_priorities, hidden_turns, hidden_ids) AS late (priority, turn, id)
                    ORDER BY 1, 2, 3
                ) AS range;
            ELSE
                from_priorities := '{-1}';
                from_turns := '{0}';
                from_ids := '{00000000-0000-0000-0000-000000000000}';
                until_priorities := '{9223372036854775807}';
                until_turns := '{0}';
                until_ids := from_ids;
            END IF;
            <<ranges>>
            LOOP
                IF after_id IS NOT NULL THEN
                    SELECT array_agg(CASE WHEN range.is_begun THEN after_priority ELSE range.from_priority END),
                        array_agg(CASE WHEN range.is_begun THEN after_turn ELSE range.from_turn END),
                        array_agg(CASE WHEN range.is_begun THEN after_id ELSE range.from_id END),
                        array_agg(range.until_priority), array_agg(range.until_turn), array_agg(range.until_id)
                    INTO from_priorities, from_turns, from_ids, until_priorities, until_turns, until_ids
                    FROM (
                        SELECT ranges.*, (from_priority, from_turn, from_id) < (after_priority, after_turn, after_id) AS is_begun
                        FROM unnest(from_priorities, from_turns, from_ids, until_priorities, until_turns, until_ids)
                            AS ranges (from_priority, from_turn, from_id, until_priority, until_turn, until_id)
                        WHERE (until_priority, until_turn, until_id) > (after_priority, after_turn, after_id)
                    ) AS range;
                END IF;
                fetched := pg_stat_get_xact_tuples_fetched('dayjob.jobs_pending'::regclass);
                read_before := pg_stat_get_xact_blocks_fetched('dayjob.jobs_pending'::regclass);
                SELECT array_agg(job.place), count(*), sum(job.size), max(job.turn),
                    array_agg(job.limits) FILTER (WHERE job.limits IS NOT NULL), coalesce(snapshot, pg_current_snapshot())
                INTO places, found, found_size, found_turn, found_limits, snapshot
                FROM (
                    SELECT pending.*
                    FROM unnest(from_priorities, from_turns, from_ids, until_priorities, until_turns, until_ids)
                        AS range (from_priority, from_turn, from_id, until_priority, until_turn, until_id)
                    CROSS JOIN LATERAL (
                        SELECT jobs.ctid AS place, jobs.turn, jobs.limits, octet_length(jobs.payload) AS size FROM dayjob.jobs
                        WHERE jobs.queue = from_queue AND jobs.state = 'pending'
                            AND (jobs.priority, jobs.turn, jobs.id) >= (range.from_priority, range.from_turn, range.from_id)
                            AND (jobs.priority, jobs.turn, jobs.id) <= (range.until_priority, range.until_turn, range.until_id)
                            AND jobs.id IS DISTINCT FROM after_id
                            AND (jobs.expires_at > moment OR jobs.expires_at IS NULL OR jobs.attempts > 0)
                        ORDER BY jobs.priority, jobs.turn, jobs.id
                        LIMIT examined
                        FOR UPDATE SKIP LOCKED
                    ) AS pending
                    LIMIT examined
                ) AS job;
                picked := coalesce(places, '{}');
                must_look := found <> pg_stat_get_xact_tuples_fetched('dayjob.jobs_pending'::regclass) - fetched;
                read := read + pg_stat_get_xact_blocks_fetched('dayjob.jobs_pending'::regclass) - read_before;
                read_for := read_for + found;
                is_wasteful := read - read_for / 20 > wasted_blocks;
                IF is_wasteful THEN
                    seen_priorities := seen_priorities || ARRAY(SELECT DISTINCT jobs.priority FROM dayjob.jobs WHERE jobs.ctid = ANY (picked));
                END IF;
                has_looked := false;
                LOOP
                    IF must_look OR held <> '{}' THEN
                        SELECT jobs.priority, jobs.turn, jobs.id INTO last FROM dayjob.jobs
                        WHERE jobs.ctid = picked[cardinality(picked)];
                    END IF;
                    IF must_look THEN
                        SELECT held || array_agg(coalesce(pair ->> 0, '')), held_priorities || array_agg(job.priority),
                            held_turns || array_agg(job.turn), held_ids || array_agg(job.id)
                        INTO held, held_priorities, held_turns, held_ids
                        FROM unnest(from_priorities, from_turns, from_ids, until_priorities, until_turns, until_ids)
                            AS range (from_priority, from_turn, from_id, until_priority, until_turn, until_id)
                        CROSS JOIN LATERAL (
                            SELECT jobs.priority, jobs.turn, jobs.id, jobs.limits FROM dayjob.jobs
                            WHERE jobs.queue = from_queue AND jobs.state = 'pending' AND jobs.id IS DISTINCT FROM after_id
                                AND (jobs.priority, jobs.turn, jobs.id) >= (range.from_priority, range.from_turn, range.from_id)
                                AND (jobs.priority, jobs.turn, jobs.id) <= (range.until_priority, range.until_turn, range.until_id)
                                AND (jobs.priority, jobs.turn, jobs.id) < (
                                    CASE WHEN cardinality(picked) < examined THEN 9223372036854775807 ELSE last.priority END,
                                    last.turn, last.id
                                )
                                AND (jobs.expires_at > moment OR jobs.expires_at IS NULL OR jobs.attempts > 0)
                                AND jobs.ctid <> ALL (picked)
                            OFFSET 0
                        ) AS job
                        LEFT JOIN LATERAL jsonb_array_elements(job.limits) AS pair ON true;
                        must_look := false;
                    END IF;
                    IF held <> '{}' THEN
                        SELECT array_agg(job.place), count(*), sum(job.size), max(job.turn),
                            array_agg(job.limits) FILTER (WHERE job.limits IS NOT NULL)
                        INTO places, found, found_size, found_turn, found_limits
                        FROM (
                            SELECT jobs.ctid AS place, jobs.turn, jobs.limits, octet_length(jobs.payload) AS size FROM dayjob.jobs
                            WHERE jobs.ctid = ANY (picked) AND jobs.ctid <> ALL (ARRAY(
                                SELECT later.ctid
                                FROM dayjob.jobs AS later
                                CROSS JOIN LATERAL jsonb_array_elements(later.limits) AS pair
                                JOIN unnest(held, held_priorities, held_turns, held_ids) AS first (name, priority, turn, id)
                                    ON first.name = pair ->> 0
                                WHERE later.ctid = ANY (picked)
                                    AND (first.priority, first.turn, first.id) < (later.priority, later.turn, later.id)
                            ))
                            ORDER BY jobs.priority, jobs.turn, jobs.id
                        ) AS job;
                    END IF;
                    fits_all := found <= at_most - cardinality(claimed)
                        AND (size + found_size <= most_bytes OR found = 1 AND size = 0);
                    names := '{}';
                    created := '{}';
                    EXIT WHEN found_limits IS NULL;
                    SELECT array_agg(bucket.name), array_agg(bucket.units), array_agg(bucket.jobs)
                    INTO names, totals, counts
                    FROM (
                        SELECT (pair ->> 0) COLLATE "C" AS name, sum((pair ->> 1)::bigint)::bigint AS units, count(*) AS jobs
                        FROM unnest(found_limits) AS pairs CROSS JOIN LATERAL jsonb_array_elements(pairs) AS pair
                        GROUP BY 1
                        ORDER BY 1
                    ) AS bucket;
                    SELECT array_agg(documents.name), array_agg(convert_from(documents.value, 'UTF8')::jsonb)
                    INTO limit_names, limit_values
                    FROM dayjob.documents
                    WHERE documents.kind = 'limit'
                        AND documents.name = ANY (names || ARRAY(SELECT split_part(name, ':', 1) FROM unnest(names) AS name));
                    settings := ARRAY(
                        SELECT limit_values[coalesce(
                            array_position(limit_names, name), array_position(limit_names, split_part(name, ':', 1))
                        )]
                        FROM unnest(names) AS name
                    );
                    SELECT array_agg((setting ->> 'running')::bigint), array_agg((setting ->> 'rate')::bigint)
                    INTO mosts, rates
                    FROM unnest(settings) AS setting;
                    IF locked = '{}' THEN
                        WITH new AS (
                            INSERT INTO dayjob.buckets (name, running)
                            SELECT bucket.name,
                                CASE WHEN bucket.rate IS NULL AND (bucket.total <= bucket.most OR bucket.most IS NULL OR bucket.jobs = 1)
                                    THEN bucket.total ELSE 0 END
                            FROM unnest(names, totals, counts, mosts, rates) AS bucket (name, total, jobs, most, rate)
                            ON CONFLICT (name) DO UPDATE SET running = 0 WHERE false
                            RETURNING name
                        )
                        SELECT coalesce(array_agg(new.name), '{}') INTO created FROM new;
                    ELSIF NOT names <@ locked THEN
                        INSERT INTO dayjob.buckets (name)
                        SELECT missing FROM unnest(names) AS missing
                        WHERE NOT EXISTS (SELECT FROM dayjob.buckets WHERE buckets.name = missing OFFSET 0)
                        ON CONFLICT DO NOTHING;
                        PERFORM FROM dayjob.buckets WHERE buckets.name = ANY (names) FOR UPDATE SKIP LOCKED;
                        GET DIAGNOSTICS place = ROW_COUNT;
                        IF place < cardinality(names) THEN
                            is_full := true;
                            topics := topics || ('0 pending ' || from_queue);
                            EXIT ranges;
                        END IF;
                    END IF;
                    moment := dayjob.now_us(given);
                    locked := locked || names;
                    EXIT WHEN has_looked;
                    SELECT array_agg(pair ->> 0), array_agg(job.priority), array_agg(job.turn), array_agg(job.id)
                    INTO late_names, late_priorities, late_turns, late_ids
                    FROM (
                        SELECT pg_snapshot_xmax(snapshot) AS first, '18446744073709551615'::xid8 AS last
                        UNION ALL
                        SELECT number, number FROM pg_snapshot_xip(snapshot) AS number
                    ) AS numbers
                    CROSS JOIN LATERAL (
                        SELECT jobs.priority, jobs.turn, jobs.id, jobs.limits FROM dayjob.jobs
                        WHERE jobs.queue = from_queue AND jobs.state = 'pending'
                            AND jobs.late >= numbers.first AND jobs.late <= numbers.last AND jobs.ctid <> ALL (picked)
                        ORDER BY jobs.late
                        LIMIT 1000000
                    ) AS job
                    CROSS JOIN LATERAL jsonb_array_elements(job.limits) AS pair
                    WHERE pair ->> 0 = ANY (names);
                    EXIT WHEN late_names IS NULL;
                    held := held || late_names;
                    held_priorities := held_priorities || late_priorities;
                    held_turns := held_turns || late_turns;
                    held_ids := held_ids || late_ids;
                    UPDATE dayjob.buckets SET running = 0 WHERE buckets.name = ANY (created);
                    has_looked := true;
                END LOOP;
                held_here := held_here + cardinality(picked) - found;
                IF found = 0 THEN
                    has_ended := cardinality(picked) < examined;
                    EXIT WHEN has_ended OR held_here >= most_blocked;
                    after_priority := last.priority;
                    after_turn := last.turn;
                    after_id := last.id;
                    examined := least(2 * examined, most_blocked);
                    CONTINUE;
                END IF;
                IF names <> '{}' THEN
                    IF cardinality(created) = cardinality(names) THEN
                        used := array_fill(0::bigint, ARRAY[cardinality(names)]);
                        tats := used;
                    ELSE
                        SELECT array_agg(CASE WHEN bucket.name = ANY (created) THEN 0 ELSE bucket.running END),
                            array_agg(bucket.tat)
                        INTO used, tats
                        FROM (
                            SELECT buckets.name, buckets.running, buckets.tat FROM dayjob.buckets
                            WHERE buckets.name = ANY (names)
                            ORDER BY buckets.name
                        ) AS bucket;
                    END IF;
                    fits_all := fits_all AND (
                        SELECT bool_and(rate IS NULL AND (running + total <= most OR most IS NULL OR running = 0 AND jobs = 1))
                        FROM unnest(used, totals, counts, mosts, rates) AS bucket (running, total, jobs, most, rate)
                    ) AND NOT EXISTS (
                        SELECT FROM dayjob.jobs
                        WHERE jobs.state = 'limited' AND jobs.limited_by = ANY (names) AND jobs.queue = from_queue
                    );
                END IF;
                IF fits_all THEN
                    IF cardinality(created) < cardinality(names) THEN
                        UPDATE dayjob.buckets SET running = bucket.running + bucket.total
                        FROM unnest(names, used, totals) AS bucket (name, running, total)
                        WHERE buckets.name = ANY (ARRAY[bucket.name]) AND buckets.running <> bucket.running + bucket.total;
                    END IF;
                    claimed := claimed || places;
                    claimed_here := claimed_here + found;
                    size := size + found_size;
                    last_turn := greatest(last_turn, found_turn);
                    is_full := cardinality(claimed) >= at_most;
                    has_ended := cardinality(picked) < examined;
                    EXIT WHEN has_ended OR is_full AND NOT is_wasteful AND (hides OR hints.queue IS NULL);
                    SELECT jobs.priority, jobs.turn, jobs.id INTO after_priority, after_turn, after_id
                    FROM dayjob.jobs WHERE jobs.ctid = picked[cardinality(picked)];
                    EXIT WHEN is_full OR held_here >= most_blocked;
                    examined := least(2 * examined, most_blocked);
                    CONTINUE;
                END IF;
                SELECT array_agg(setting.per), array_agg(dayjob.cost(setting.burst, setting.per, setting.rate))
                INTO pers, bursts
                FROM (
                    SELECT coalesce((setting ->> 'per')::bigint, 1000000) AS per, (setting ->> 'rate')::bigint AS rate,
                        coalesce((setting ->> 'burst')::bigint, 1) AS burst
                    FROM unnest(settings) AS setting
                ) AS setting;
                SELECT array_agg(head.priority ORDER BY bucket.number), array_agg(head.turn ORDER BY bucket.number),
                    array_agg(head.id ORDER BY bucket.number), array_agg(0::bigint)
                INTO head_priorities, head_turns, head_ids, freed
                FROM unnest(names) WITH ORDINALITY AS bucket (name, number)
                LEFT JOIN LATERAL (
                    SELECT jobs.priority, jobs.turn, jobs.id FROM dayjob.jobs
                    WHERE jobs.state = 'limited' AND jobs.limited_by = bucket.name AND jobs.queue = from_queue
                    ORDER BY jobs.priority, jobs.turn, jobs.id
                    LIMIT 1
                ) AS head ON true;
                blocked := '{}';
                blocked_by := '{}';
                FOR candidate IN
                    SELECT jobs.ctid AS place, jobs.id, jobs.priority, jobs.turn, octet_length(jobs.payload) AS size,
                        ARRAY(
                            SELECT array_position(names, pair ->> 0)
                            FROM jsonb_array_elements(jobs.limits) WITH ORDINALITY AS part (pair, number)
                            ORDER BY part.number
                        ) AS buckets,
                        ARRAY(
                            SELECT (pair ->> 1)::bigint FROM jsonb_array_elements(jobs.limits) WITH ORDINALITY AS part (pair, number)
                            ORDER BY part.number
                        ) AS units
                    FROM dayjob.jobs
                    WHERE jobs.ctid = ANY (places)
                    ORDER BY jobs.priority, jobs.turn, jobs.id
                LOOP
                    after_priority := candidate.priority;
                    after_turn := candidate.turn;
                    after_id := candidate.id;
                    blocker := NULL;
                    FOR part IN 1 .. cardinality(candidate.buckets) LOOP
                        place := candidate.buckets[part];
                        IF (used[place] > 0 AND used[place] + candidate.units[part] > mosts[place])
                            OR (rates[place] IS NOT NULL AND moment < tats[place]
                                - greatest(bursts[place] - dayjob.cost(candidate.units[part], pers[place], rates[place]), 0))
                            OR (head_priorities[place], head_turns[place], head_ids[place])
                                < (candidate.priority, candidate.turn, candidate.id)
                        THEN
                            blocker := place;
                            EXIT;
                        END IF;
                    END LOOP;
                    IF blocker IS NULL THEN
                        IF size > 0 AND size + candidate.size > most_bytes THEN
                            is_full := true;
                            EXIT;
                        END IF;
                        FOR part IN 1 .. cardinality(candidate.buckets) LOOP
                            place := candidate.buckets[part];
                            used[place] := used[place] + candidate.units[part];
                            IF rates[place] IS NOT NULL THEN
                                tats[place] := greatest(tats[place], moment)
                                    + dayjob.cost(candidate.units[part], pers[place], rates[place]);
                            END IF;
                        END LOOP;
                        size := size + candidate.size;
                        claimed := claimed || candidate.place;
                        claimed_here := claimed_here + 1;
                        last_turn := greatest(last_turn, candidate.turn);
                        is_full := cardinality(claimed) >= at_most;
                        EXIT WHEN is_full;
                    ELSE
                        blocked := blocked || candidate.place;
                        blocked_by := blocked_by || names[blocker];
                        blocked_here := blocked_here + 1;
                        FOR part IN 1 .. cardinality(candidate.buckets) LOOP
                            place := candidate.buckets[part];
                            IF place <> blocker THEN
                                freed[place] := freed[place] + candidate.units[part];
                            ELSIF head_ids[place] IS NULL OR (candidate.priority, candidate.turn, candidate.id)
                                < (head_priorities[place], head_turns[place], head_ids[place])
                            THEN
                                head_priorities[place] := candidate.priority;
                                head_turns[place] := candidate.turn;
                                head_ids[place] := candidate.id;
                            END IF;
                        END LOOP;
                        EXIT WHEN blocked_here >= most_blocked;
                    END IF;
                END LOOP;
                IF blocked <> '{}' THEN
                    UPDATE dayjob.jobs SET state = 'limited', limited_by = moved.bucket
                    FROM unnest(blocked, blocked_by) AS moved (place, bucket)
                    WHERE jobs.ctid = moved.place;
                END IF;
                IF names <> '{}' THEN
                    UPDATE dayjob.buckets SET running = bucket.running, tat = bucket.tat
                    FROM unnest(names, used, tats) AS bucket (name, running, tat)
                    WHERE buckets.name = ANY (ARRAY[bucket.name]) AND (buckets.running <> bucket.running OR buckets.tat <> bucket.tat);
                    to_wake := to_wake || names;
                    to_wake_freed := to_wake_freed || freed;
                END IF;
                IF blocked_here >= most_blocked THEN
                    topics := topics || ('0 pending ' || from_queue);
                    EXIT;
                END IF;
                has_ended := NOT is_full AND cardinality(picked) < examined;
                EXIT WHEN is_full OR has_ended OR held_here >= most_blocked;
                IF held <> '{}' THEN
                    after_priority := last.priority;
                    after_turn := last.turn;
                    after_id := last.id;
                END IF;
                examined := least(2 * examined, most_blocked);
            END LOOP;
            IF held <> '{}' THEN
                topics := topics || ('0 locked ' || from_queue);
            ELSIF NOT is_wasteful AND NOT hides AND (
                has_ended OR (after_priority, after_turn, after_id)
                    > (hints.priorities[cardinality(hints.priorities)], hints.turns[cardinality(hints.turns)], hints.ids[cardinality(hints.ids)])
            ) THEN
                DELETE FROM dayjob.scan_hints WHERE scan_hints.queue = hints.queue;
            ELSIF is_wasteful AND (has_ended OR after_id IS NOT NULL) AND (NOT hides OR started >= hints.raised_at + 20000) THEN
                PERFORM dayjob.raise_hints(
                    from_queue, hints, hides, snapshot, started, seen_priorities, ARRAY(
                        SELECT late.priority FROM unnest(hidden_priorities, hidden_turns, hidden_ids) AS late (priority, turn, id)
                        WHERE NOT has_ended AND (late.priority, late.turn, late.id) > (after_priority, after_turn, after_id)
                    ),
                    CASE WHEN has_ended THEN 9223372036854775807 ELSE after_priority END,
                    ROW(after_turn, after_id)::dayjob.place, grace, search_interval
                );
            END IF;
            IF claimed_here > 0 OR blocked_here > 0 THEN
                INSERT INTO dayjob.counters (queue, pending, limited, running)
                VALUES (from_queue, -claimed_here - blocked_here, blocked_here, claimed_here);
            END IF;
            IF last_turn > 0 THEN
                INSERT INTO dayjob.queue_turns (queue, turn) VALUES (from_queue, last_turn)
                ON CONFLICT (queue) DO UPDATE SET turn = excluded.turn WHERE queue_turns.turn < excluded.turn;
            END IF;
        END LOOP;
        RETURN QUERY
            UPDATE dayjob.jobs
            SET state = 'running', attempts = attempts + 1, epoch = greatest(epoch + 1, moment), claimed_at = moment,
                lease_expires_at = moment + leases[array_position(wanted, queue)],
                worker = by_worker, claim = claim_key, progress = NULL,
                held_key = CASE WHEN dedup_until = 'settled' THEN held_key END
            WHERE jobs.ctid = ANY (claimed)
            RETURNING jobs.*;
        IF to_wake <> '{}' THEN
            SELECT array_agg(bucket.name), array_agg(bucket.freed) INTO names, freed
            FROM (
                SELECT bucket.name, sum(bucket.freed)::bigint AS freed FROM unnest(to_wake, to_wake_freed) AS bucket (name, freed)
                GROUP BY bucket.name
            ) AS bucket;
            topics := topics || (SELECT lines.topics FROM dayjob.wake_lines(moment, names, freed, 10000000) AS lines);
        END IF;
        FOREACH announced.task IN ARRAY topics LOOP
            RETURN NEXT announced;
        END LOOP;
    END
    $$;

-- Return the turn of each queue, and the next free turn of each tenant, which stays locked.
CREATE FUNCTION dayjob.next_turns(queues text[], tenants text[]) RETURNS TABLE (queue text, tenant text, turn bigint, free bigint)
    LANGUAGE plpgsql VOLATILE
    AS $$
    BEGIN
        INSERT INTO dayjob.tenant_turns (queue, tenant)
        SELECT DISTINCT given.queue COLLATE "C", given.tenant COLLATE "C" FROM unnest(queues, tenants) AS given (queue, tenant)
        ORDER BY 1, 2
        ON CONFLICT ON CONSTRAINT tenant_turns_pkey DO UPDATE SET turn = 0 WHERE false;
        RETURN QUERY
            SELECT given.queue, given.tenant, coalesce(passed.turn, 1), found.turn
            FROM unnest(queues, tenants) AS given (queue, tenant)
            CROSS JOIN LATERAL (
                SELECT tenants.turn FROM dayjob.tenant_turns AS tenants
                WHERE tenants.queue = given.queue AND tenants.tenant = given.tenant
                OFFSET 0
            ) AS found
            LEFT JOIN dayjob.queue_turns AS passed ON passed.queue = given.queue;
    END
    $$;

-- Return the time, and the pending and limited jobs of each queue. With may_lock, other transactions that look wait.
CREATE FUNCTION dayjob.count_waiting(given bigint, queues text[], may_lock boolean)
    RETURNS TABLE (moment bigint, queue text, waiting bigint)
    LANGUAGE plpgsql VOLATILE
    AS $$
    BEGIN
        IF may_lock THEN
            PERFORM pg_advisory_xact_lock('dayjob.counters'::regclass::oid::integer, hash)
            FROM (SELECT DISTINCT hashtext(name) AS hash FROM unnest(queues) AS name ORDER BY 1) AS hashes;
        END IF;
        RETURN QUERY
            SELECT dayjob.now_us(given), name, coalesce((
                SELECT sum(counters.pending + counters.limited)::bigint FROM dayjob.counters WHERE counters.queue = name
            ), 0)
            FROM unnest(queues) AS name;
    END
    $$;

CREATE INDEX CONCURRENTLY jobs_lines ON dayjob.jobs (limited_by, queue, priority, turn, id) WHERE state = 'limited';
CREATE INDEX CONCURRENTLY jobs_order ON dayjob.jobs (queue, priority, turn, id) WITH (deduplicate_items = off) WHERE state = 'pending';
CREATE UNIQUE INDEX CONCURRENTLY jobs_keys ON dayjob.jobs (coalesce(dedup_scope, queue), held_key) WHERE held_key IS NOT NULL;

DROP INDEX dayjob.jobs_pending;
ALTER INDEX dayjob.jobs_order RENAME TO jobs_pending;
DROP INDEX dayjob.jobs_holders;
ALTER INDEX dayjob.jobs_keys RENAME TO jobs_holders;
