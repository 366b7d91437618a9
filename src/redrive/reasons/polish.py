"""The Polish catalogue of reasons."""

from __future__ import annotations

from redrive.reasons.codes import Catalogue, ReasonCode


def _plural_form(number: int) -> int:
    if number == 1:
        return 0
    few = number % 10 in (2, 3, 4) and number % 100 not in (12, 13, 14)
    return 1 if few else 2


_TEXTS: dict[str, str] = {
    # text that has no code
    ReasonCode.TEXT: "{text}",
    # why a step, a run or a rollback failed
    ReasonCode.STEP_FAILED: (
        "krok {step!r} nie powiódł się ({category}): {why}|krok {step!r} nie powiódł się, liczba prób: {n} "
        "({category}): {why}"
    ),
    ReasonCode.STEP_NOT_UNDONE: "nie udało się wycofać kroku {step!r}: {why}",
    ReasonCode.WORKFLOW_RAISED: "przepływ pracy {workflow!r} zgłosił błąd {error_type}: {message}",
    ReasonCode.WORKFLOW_INPUT_UNUSABLE: "nie można użyć danych wejściowych przepływu pracy {workflow!r}: {why}",
    ReasonCode.STEP_INPUT_UNUSABLE: "nie można użyć zapisanych danych wejściowych kroku {step!r}: {why}",
    ReasonCode.RUN_UNREADABLE: "nie można odczytać zapisanych danych tego przebiegu: {why}",
    ReasonCode.FAILURE_UNREADABLE: "nie można pokazać tego błędu: {why}",
    ReasonCode.WORKERS_DIED: (
        "podczas tego przebiegu {n} proces roboczy uległ awarii|podczas tego przebiegu {n} procesy robocze uległy "
        "awarii|podczas tego przebiegu {n} procesów roboczych uległo awarii"
    ),
    ReasonCode.STEP_REPLAYED_ALONE: (
        "uruchomiono ponownie tylko krok {step!r}: aby kontynuować przebieg, ponów go od nieudanego kroku"
    ),
    ReasonCode.DEADLINE_PASSED: "przebieg przekroczył termin",
    ReasonCode.RUN_ROLLED_BACK: "przebieg został wycofany",
    ReasonCode.RUN_CANCELLED_BY: "przebieg anulowany przez {by}[: {comment}]",
    ReasonCode.CODE_CHANGED: (
        "w dzienniku: {recorded}, w kodzie teraz: {asked}; funkcja przepływu pracy zmieniła się w trakcie tego "
        "przebiegu"
    ),
    ReasonCode.JOURNAL_CALLS: "{calls:list}",
    ReasonCode.JOURNAL_CALL: "{name!r}[ (wywołanie {call})][ w gałęzi {branch}]",
    ReasonCode.JOURNAL_NOTHING: "nic więcej",
    ReasonCode.COMPENSATION_UNKNOWN: (
        "nie zarejestrowano kompensacji dla {steps:quoted}: uruchom proces roboczy, którego kod ją zawiera"
    ),
    ReasonCode.COMPENSATION_MISSING: (
        "kompensacja {compensation!r} kroku {step!r} nie jest zarejestrowana: uruchom proces roboczy, którego kod ją "
        "zawiera"
    ),
    ReasonCode.STORE_REFUSED_DATA: "magazyn danych odrzucił dane: {why}",
    ReasonCode.STEP_CUT_SHORT: (
        "krok {step!r} wykonuje się najwyżej raz i został przerwany: mógł zostać wykonany. Sprawdź to, a potem pomiń "
        "go albo podaj jego wynik"
    ),
    ReasonCode.CIRCUIT_OPEN: "bezpiecznik {circuit!r} jest otwarty, więc kroku nie wywołano",
    ReasonCode.PAYLOAD_TOO_LARGE: (
        "{what} zajmuje {size}, a limit wynosi {limit}: zapisz te dane gdzie indziej i przekaż odwołanie albo "
        "zwiększ REDRIVE_MAX_PAYLOAD"
    ),
    # how the engine closed a dead letter
    ReasonCode.REPLAY_SUCCEEDED: "uruchomiono ponownie",
    ReasonCode.STEP_REPLAY_SUCCEEDED: "częściowo uruchomiono ponownie",
    ReasonCode.ROLLED_BACK: "wycofano",
    ReasonCode.RUN_CANCELLED: "przebieg został anulowany",
    ReasonCode.LETTER_EXPIRED: "wygasła",
    # what was decided after an attempt
    ReasonCode.RETRY_SCHEDULED: (
        "próba {attempt}[ z {of}][, HTTP {status_code}], {cause}[, oczekiwanie {delay:duration}][, "
        "Retry-After {retry_after:duration}][ + losowo {jitter:duration}][, następna o {next_at:clock} "
        "UTC]"
    ),
    ReasonCode.NOT_RETRIED: "próba {attempt}[ z {of}][, HTTP {status_code}], {cause}, bez ponowienia: {why}",
    ReasonCode.ATTEMPT_SUCCEEDED: "próba {attempt}, udana",
    ReasonCode.ATTEMPT_CANCELLED: "próba {attempt}: anulowana",
    ReasonCode.ATTEMPT_LOST: (
        "próba {attempt}: proces roboczy uległ awarii; próba zostanie powtórzona pod tym samym numerem"
    ),
    ReasonCode.ATTEMPT_RELEASED: (
        "próba {attempt}: proces roboczy został zatrzymany; próba zostanie powtórzona pod tym samym numerem"
    ),
    ReasonCode.ATTEMPT_INTERRUPTED: "próba {attempt}: przerwana; krok mógł zostać wykonany i nie będzie powtórzony",
    ReasonCode.ATTEMPT_ENDED: "próba {attempt}: {end}",
    ReasonCode.CIRCUIT_WAS_OPEN: "nie wywołano: bezpiecznik był otwarty; oczekiwanie nie zużywa prób",
    ReasonCode.TIMED_OUT: "przekroczono limit czasu",
    ReasonCode.NETWORK_ERROR: "błąd sieci",
    ReasonCode.RATE_LIMITED: "przekroczono limit zapytań",
    ReasonCode.SERVER_ERROR: "błąd serwera",
    ReasonCode.DEPENDENCY_UNAVAILABLE: "usługa niedostępna",
    ReasonCode.INVALID_DATA: "nieprawidłowe dane",
    ReasonCode.NOT_AUTHORISED: "brak uprawnień",
    ReasonCode.NOT_FOUND: "nie znaleziono",
    ReasonCode.CLIENT_ERROR: "usługa odrzuciła żądanie",
    ReasonCode.CONFIGURATION_MISSING: "brak konfiguracji",
    ReasonCode.INTERNAL_ERROR: "błąd w kodzie",
    ReasonCode.UNCLASSIFIED_ERROR: "nierozpoznany błąd",
    # why an attempt is not repeated
    ReasonCode.RETRIES_EXHAUSTED: "wykorzystano wszystkie próby",
    ReasonCode.NO_RETRY_ALLOWED: "zasady nie pozwalają na ponowienie",
    ReasonCode.RETRY_TIME_EXCEEDED: "kolejna próba przekroczyłaby limit {limit:duration} od pierwszej próby",
    ReasonCode.STEP_AT_MOST_ONCE: "krok wykonuje się najwyżej raz",
    ReasonCode.RAISED_NON_RETRYABLE: "błąd zgłoszono jako NonRetryable",
    ReasonCode.IN_NEVER_RETRY_ON: "zasady wymieniają ten błąd w never_retry_on",
    ReasonCode.NOT_IN_RETRY_ON: "zasady nie wymieniają tego błędu w retry_on",
    ReasonCode.CATEGORY_NOT_RETRIED: "po błędzie kategorii {category} nie ma ponowień",
    ReasonCode.RUN_ENDING: "przebieg się kończy",
    # why a circuit changed
    ReasonCode.CIRCUIT_PROBE_FAILED: "wywołanie próbne nie powiodło się: {category}",
    ReasonCode.CIRCUIT_FAILURES: (
        "{n} błąd w ciągu {window:duration}, ostatni: {category}|{n} błędy w ciągu {window:duration}, "
        "ostatni: {category}|{n} błędów w ciągu {window:duration}, ostatni: {category}"
    ),
    ReasonCode.CIRCUIT_OPEN_TIME_OVER: "był otwarty przez {open_for:duration}",
    ReasonCode.CIRCUIT_PROBE_SUCCEEDED: "wywołanie próbne powiodło się",
    # what follows a failure, in notifications
    ReasonCode.NEXT_ATTEMPT: "nastąpi próba {attempt}",
    ReasonCode.NEXT_UNDONE: "przebieg został wycofany; nic nie trzeba robić",
    ReasonCode.NEXT_DECISION: (
        "nieudana sprawa czeka na decyzję: ponów ją, popraw dane wejściowe, oznacz ją jako rozwiązaną albo zignoruj"
    ),
    ReasonCode.NEXT_WORKFLOW: "błąd trafia do przepływu pracy; jeśli go nie obsłuży, przebieg się nie powiedzie",
    ReasonCode.NEXT_PROBE: "wywołania czekają, aż wywołanie próbne pokaże, że usługa jest dostępna",
    # what a dry run warns of
    ReasonCode.VERSION_CHANGED: (
        "kod zmienił się od czasu tego przebiegu: zapisano go w wersji {version}, najnowsza to {newest}"
    ),
    ReasonCode.WORKFLOW_NEVER_REGISTERED: (
        "przepływ pracy {workflow!r} nie jest zarejestrowany: nic się nie uruchomi, dopóki nie zarejestruje go "
        "proces roboczy"
    ),
    ReasonCode.WORKFLOW_HAS_NO_WORKER: (
        "żaden działający proces roboczy nie ma przepływu pracy {workflow!r}: ponowne uruchomienie zostanie "
        "odrzucone, dopóki któryś go nie zarejestruje"
    ),
    ReasonCode.RESULTS_FROM_ORIGINAL_INPUT: "zakończone kroki użyły pierwotnych danych i nie zostaną powtórzone",
    ReasonCode.SAME_IDEMPOTENCY_KEY: (
        "{names:list} zachowa stary klucz idempotencji, więc usługa może powtórzyć dawną odpowiedź: ustaw "
        "new_operation, aby wysłać nowy klucz|{names:list} zachowają stare klucze idempotencji, więc usługi mogą "
        "powtórzyć dawne odpowiedzi: ustaw new_operation, aby wysłać nowe klucze"
    ),
    ReasonCode.NEW_IDEMPOTENCY_KEYS: (
        "usługi zewnętrzne otrzymają nowe klucze idempotencji i każde wywołanie uznają za nowe: klient może zostać "
        "obciążony dwa razy"
    ),
    ReasonCode.STEP_MAY_HAVE_HAPPENED: "krok {step} został przerwany, ale mógł zostać wykonany: najpierw to sprawdź",
    ReasonCode.STEP_ACTS_AGAIN: "krok {step} już się powiódł i ponownie wywoła usługi zewnętrzne: {effect}",
    # why a saved view is refused
    ReasonCode.VIEW_LIST_UNKNOWN: "{given} nie ma zapisanych widoków: podaj jedną z list {lists:list}",
    ReasonCode.TOO_MANY_SHARED_VIEWS: (
        "organizacja {tenant!r} udostępnia już {n} widoków tej listy: najpierw usuń jeden z nich"
    ),
    ReasonCode.TOO_MANY_VIEWS: "masz już {n} widoków tej listy: najpierw usuń jeden z nich",
    ReasonCode.SHARED_VIEW_NOT_FOUND: "ta lista nie ma udostępnionego widoku {name}",
    ReasonCode.VIEW_NOT_FOUND: "ta lista nie ma widoku {name}",
    ReasonCode.VIEW_NAME_INVALID: (
        "{given} nie może być nazwą widoku: użyj od 1 do {longest} znaków drukowalnych bez ukośnika"
    ),
    ReasonCode.VIEW_FILTER_TOO_LONG: "filtr widoku jest dłuższy niż {longest:,} znaków: użyj mniej warunków",
    ReasonCode.VIEW_FIELD_UNKNOWN: "listy {list} nie można filtrować według {names}: użyj {known:list}",
    ReasonCode.VIEW_FILTER_EMPTY: (
        "filtr widoku jest pusty: najpierw przefiltruj listę, na przykład według code=timeout"
    ),
    # why a decision on many dead letters is refused
    ReasonCode.SET_NOT_FOUND: "operacja zbiorcza {id} nie istnieje",
    ReasonCode.SET_DONE: "operacja zbiorcza {id} jest zakończona: przetworzono wszystkie jej sprawy",
    ReasonCode.SET_STOPPED: (
        "operacja zbiorcza {id} została zatrzymana przez {by}: dla pozostałych spraw rozpocznij następną"
    ),
    ReasonCode.SET_UNREADABLE: "operacji zbiorczej {id} nie można tu wykonać: {why}",
    ReasonCode.SET_ITEM_STATUS_UNKNOWN: "{given} nie jest stanem pozycji operacji zbiorczej: użyj {known:list}",
    ReasonCode.RATE_INVALID: (
        "{given} nie jest tempem: podaj liczbę całkowitą na sekundę, minutę lub godzinę, na przykład 50/s albo 600/m"
    ),
    ReasonCode.RATE_OUT_OF_RANGE: (
        "{given:,} to nieprawidłowe tempo: podaj od 1 do {most:,} na sekundę, minutę lub godzinę; aby nic nie "
        "przetwarzać, wstrzymaj operację zbiorczą"
    ),
    ReasonCode.LETTERS_NOT_SELECTED: "nie wybrano żadnej sprawy: zaznacz sprawy albo wybierz wszystkie pasujące",
    ReasonCode.LETTER_IDS_NEEDED: "podaj LetterFilter albo listę identyfikatorów, a nie {given}",
    ReasonCode.LETTER_CHOICE_NEEDED: "podaj filtr albo identyfikatory; pusty filtr oznacza wszystkie otwarte sprawy",
    ReasonCode.INDEX_INVALID: "index przyjmuje `pole:wartość`",
    ReasonCode.LETTER_IDS_TOO_MANY: (
        "liczba podanych identyfikatorów to {count:,}: podaj od 1 do {most:,} albo LetterFilter"
    ),
    ReasonCode.LETTER_ID_INVALID: "{id} nie jest identyfikatorem nieudanej sprawy",
    ReasonCode.ONLY_OPEN_LETTERS: "przetwarzać można tylko otwarte sprawy, a filtr wybiera {statuses:list}",
    ReasonCode.TENANTS_DIFFER: "filtr wskazuje organizację {filter!r}, a wywołanie {call!r}",
    ReasonCode.UNEXPECTED_ERROR: (
        "nieoczekiwany błąd podczas ponownego uruchamiania: {error_type}: {message}. Szczegóły są w dzienniku serwera"
    ),
    # why a decision on one dead letter or run is refused
    ReasonCode.LETTER_NOT_FOUND: "nieudana sprawa {id} nie istnieje",
    ReasonCode.LETTER_GONE: "nieudana sprawa {id} nie istnieje albo jej przebieg został usunięty",
    ReasonCode.COMPENSATION_NOT_FOUND: "wycofanie tego przebiegu nie ma takiego kroku",
    ReasonCode.LETTER_OR_RUN_NOT_FOUND: "nie istnieje nieudana sprawa ani przebieg {id}",
    ReasonCode.RUN_NOT_FOUND: "przebieg {id} nie istnieje",
    ReasonCode.LETTER_RUN_PURGED: "przebieg sprawy {id} został usunięty: decyzja w tej sprawie nie jest już możliwa",
    ReasonCode.RUN_PURGED: (
        "przebieg {run} został usunięty: jego danych wejściowych i kroków już nie ma, więc nie można go uruchomić "
        "ponownie"
    ),
    ReasonCode.RUN_SEALED: "przebiegu {run} nie można stąd uruchomić ponownie: {why}",
    ReasonCode.RUN_REPLAYED_AS: "przebieg {run} uruchomiono ponownie jako {other}: podejmij decyzję o tamtym przebiegu",
    ReasonCode.LETTER_REPLAYING: (
        "sprawa {id} jest już ponawiana na podstawie innej decyzji: poczekaj, aż to się skończy"
    ),
    ReasonCode.LETTER_RESOLVED: "sprawa {id} jest rozwiązana ({how}): zobacz jej przebieg {run}",
    ReasonCode.LETTER_CLOSED: "sprawa {id} została zamknięta ({status}: {how}): zamiast niej ponów jej przebieg {run}",
    ReasonCode.LETTER_CLOSED_BEFORE: "sprawa {id} ma już stan {status} ({how}): aby coś dodać, napisz komentarz",
    ReasonCode.LETTER_NOT_OPEN: "sprawa {id} ma stan {status} i nie można jej zamknąć jako {wanted}",
    ReasonCode.NO_REASON_GIVEN: "nie podano powodu",
    ReasonCode.KEY_USED: "klucza {key!r} użyto już do innej decyzji w sprawie {id}",
    ReasonCode.WORKFLOW_UNREGISTERED: (
        "przepływ pracy {workflow!r} nigdy nie został zarejestrowany, więc nie zostałby uruchomiony: uruchom proces "
        "roboczy, który go ma, i spróbuj ponownie"
    ),
    ReasonCode.WORKFLOW_ABANDONED: (
        "żaden działający proces roboczy nie ma już przepływu pracy {workflow!r}, więc nie zostałby uruchomiony: "
        "uruchom proces roboczy, który go ma, i spróbuj ponownie"
    ),
    ReasonCode.CODE_UNREGISTERED: (
        "{kind} {name!r} nie jest zarejestrowany, więc nie można sprawdzić wartości: uruchom proces roboczy, który "
        "go ma"
    ),
    ReasonCode.RUN_ENDED: "przebieg {run} zakończył się ze stanem {status} i nie można go już anulować",
    ReasonCode.RUN_BEING_UNDONE: (
        "przebieg {run} jest wycofywany i nie można go anulować: wycofana zostałaby tylko część"
    ),
    ReasonCode.RUN_CONFIRMING: (
        "przebieg {run} potwierdza swoje rezerwacje i nie można go już anulować: może być tylko kontynuowany"
    ),
    # why a replay does not fit its run
    ReasonCode.NOT_REPLAYABLE: (
        "przebieg {run} ma stan {status}: ponownie uruchomić można tylko przebieg nieudany lub częściowy"
    ),
    ReasonCode.ROLLED_BACK_ALREADY: "przebieg {run} ma stan {status}: został już wycofany",
    ReasonCode.NOT_ROLLED_BACK: "przebieg {run} ma stan {status}: wycofać można tylko przebieg nieudany lub częściowy",
    ReasonCode.ROLLBACK_STOPPED: (
        "wycofywanie przebiegu {run} zatrzymało się na kompensacji {compensation!r} kroku {step!r}: wznów wycofywanie"
    ),
    ReasonCode.PIVOT_PASSED: (
        "przebieg {run} minął punkt, od którego nie ma odwrotu (krok {step!r}), i nie można go wycofać: uruchom go "
        "ponownie"
    ),
    ReasonCode.RUN_UNDONE: (
        "kroki przebiegu {run} zostały wycofane, więc nie ma od czego kontynuować: uruchom go od nowa w trybie FULL, "
        "jako nową operację"
    ),
    ReasonCode.ROLLBACK_NEEDS_DECISION: (
        "wycofywanie przebiegu {run} zatrzymało się na kompensacji {compensation!r} kroku {step!r}: wznów ją "
        "(FROM_FAILED), pomiń (SKIP) albo oznacz jako wykonaną (COMPLETE), bez zmiany danych wejściowych"
    ),
    ReasonCode.ROLLBACK_KEEPS_KEYS: (
        "wycofywanie zachowuje klucze idempotencji: z nowymi kluczami coś mogłoby zostać wycofane dwa razy"
    ),
    ReasonCode.NOT_UNDONE_YET: "przebieg {run} nie jest jeszcze wycofany: uruchom go od nowa, gdy będzie",
    ReasonCode.NEW_OPERATION_NEEDED: (
        "kroki przebiegu {run} zostały wycofane, a usługi zewnętrzne uznałyby te same wywołania za powtórki: ustaw "
        "new_operation, aby wykonać je jeszcze raz"
    ),
    ReasonCode.ROLLBACK_RUNNING: "przebieg {run} jest wycofywany: poczekaj, aż wycofywanie się skończy albo zatrzyma",
    ReasonCode.OTHER_COMPENSATION_NEXT: ("następna kompensacja to {compensation!r} kroku {step!r}, a nie {given}"),
    ReasonCode.STEP_CONFIRMED: (
        "krok tego przebiegu został potwierdzony przez {confirmation!r}, więc przebieg może być tylko "
        "kontynuowany: użyj FROM_FAILED, SKIP albo COMPLETE lub uruchom go od nowa w trybie FULL jako nową operację"
    ),
    ReasonCode.FROM_STEP_NEEDED: "FROM_STEP wymaga numeru kroku, od którego zacząć: podaj from_step",
    ReasonCode.FROM_STEP_UNUSED: "from_step można podać tylko w trybie FROM_STEP, a nie w trybie {mode}",
    ReasonCode.FROM_STEP_INVALID: "from_step musi być numerem kroku, a nie {given}",
    ReasonCode.FROM_STEP_UNKNOWN: "przebieg nie ma kroku o numerze {index}; zapisane kroki to {steps}",
    ReasonCode.INPUT_AND_PATCH: "wyślij całe dane wejściowe albo zmianę (patch), nie jedno i drugie",
    ReasonCode.INPUT_KEPT: "{mode} zachowuje dane wejściowe: aby je zmienić, użyj FROM_FAILED, FROM_STEP albo FULL",
    ReasonCode.OUTPUT_UNUSED: "output to wynik nieudanego kroku: można go podać tylko w trybach SKIP i COMPLETE",
    ReasonCode.UNDO_UNUSED: "kompensację można wskazać tylko w trybach SKIP i COMPLETE",
    ReasonCode.SKIP_STEPS_UNUSED: "skip_steps można podać tylko w trybach FROM_FAILED i FROM_STEP",
    ReasonCode.SKIP_STEPS_TWICE: "skip_steps podaje dwa wyniki kroku {step!r}",
    ReasonCode.STEP_WOULD_REPEAT: (
        "krok {step!r} (numer {index}) wykonuje się najwyżej raz i zostałby wywołany ponownie: zacznij od następnego "
        "kroku albo od numeru {index}, jeśli na pewno nic się nie stało"
    ),
    ReasonCode.STEP_UNCERTAIN: (
        "krok {step!r} wykonuje się najwyżej raz i został przerwany, gdy przebieg się kończył: mógł zostać wykonany. "
        "Sprawdź to, a potem ponów przebieg z jego wynikiem w skip_steps albo zacznij od niego: FROM_STEP {index}"
    ),
    ReasonCode.FULL_WOULD_REPEAT: (
        "krok {step!r} wykonuje się najwyżej raz, a tryb FULL wywołałby go ponownie: użyj FROM_STEP z następnym "
        "krokiem albo ustaw new_operation, jeśli to ma być nowa operacja"
    ),
    ReasonCode.STEP_SUCCEEDED: (
        "krok {step!r} powiódł się i nie zostanie wywołany ponownie, więc nie można go pominąć: aby uzyskać inny "
        "wynik, zacznij od niego: FROM_STEP {index}"
    ),
    ReasonCode.NO_STEP_FAILED: (
        "{mode} wymaga nieudanego kroku, a w tym przebiegu żaden krok nie zawiódł: użyj FROM_FAILED, FROM_STEP albo "
        "FULL"
    ),
    ReasonCode.STEP_CALL_UNCERTAIN: (
        "krok {step!r} wykonuje się najwyżej raz i mógł zostać wykonany: sprawdź to, a potem pomiń go z wynikiem "
        "(SKIP), uzupełnij jego wynik (COMPLETE) albo zacznij od niego: FROM_STEP {index}"
    ),
    ReasonCode.REPLAY_OPTION_UNKNOWN: "ponowne uruchomienie nie ma opcji {names}; dostępne opcje: {known:list}",
    ReasonCode.REPLAY_MODE_UNKNOWN: "tryb {given} nie istnieje; dostępne tryby: {known:list}",
    ReasonCode.RETRY_POLICY_NEEDED: "retry przyjmuje RetryPolicy, a nie {given}",
    ReasonCode.PATCH_OBJECT_NEEDED: (
        "zmiana (patch) musi być obiektem JSON, który polom przypisuje nowe wartości; null usuwa pole"
    ),
    ReasonCode.INPUT_NOT_PATCHABLE: (
        "zmianę (patch) można zastosować tylko do danych wejściowych, które są obiektem JSON; wyślij całe dane"
    ),
    ReasonCode.MASK_AMBIGUOUS: (
        "{paths:list}[ i jeszcze {more}]: {mask} zastępuje ukrytą wartość, ale nie wiadomo którą. Wpisz prawdziwą "
        "wartość albo pomiń to pole w zmianie (patch)"
    ),
    # why a start is refused
    ReasonCode.START_OPTION_UNKNOWN: "start nie ma opcji {names}; ma {known:list}",
    ReasonCode.START_KEY_USED: (
        "klucza idempotencji tego startu użyto już dla przebiegu {run} z innymi danymi wejściowymi; nowe dane wymagają "
        "nowego klucza (przepływ pracy {workflow!r}, organizacja {tenant!r})"
    ),
    ReasonCode.EVENT_USED: (
        "zdarzenie {event!r} ze strumienia {stream!r} odebrano już wcześniej, z inną treścią albo dla innego przepływu "
        "pracy, i uruchomiło ono przebieg {run}; nowe zdarzenie wymaga nowego identyfikatora, a drugi odbiorca osobnej "
        "nazwy strumienia (przepływ pracy {workflow!r}, organizacja {tenant!r})"
    ),
    ReasonCode.DEADLINE_WITHOUT_ZONE: (
        "deadline nie ma strefy czasowej: użyj datetime.now(UTC) + ... albo czasu trwania"
    ),
    ReasonCode.DEADLINE_TOO_FAR: "deadline {given} wykracza poza zakres zegara: pomiń go",
    ReasonCode.INDEX_VALUE_INVALID: ("pola wyszukiwania zawierają teksty, liczby i wartości logiczne, a nie {given}"),
    # why another request is refused
    ReasonCode.POLICY_NEEDED: "oczekiwano RetryPolicy, a nie {given}",
    ReasonCode.POLICY_TARGET_NEEDED: "wskaż przepływ pracy lub krok, których dotyczą zasady ponawiania, albo oba",
    ReasonCode.POLICY_NOT_FOUND: "dla tego celu nie zapisano polityki",
    ReasonCode.POLICY_INVALID: "polityka ponawiania jest nieprawidłowa: {why}",
    ReasonCode.CIRCUIT_UNKNOWN: (
        "bezpiecznik {circuit!r} organizacji {tenant!r} nie ma zapisanego stanu, więc przepuszcza wywołania. `list` "
        "pokazuje bezpieczniki, które go mają"
    ),
    ReasonCode.CIRCUIT_SETTINGS_NEEDED: "nie podano ustawień: podaj failures, window, open_for, probes albo on_open",
    ReasonCode.CIRCUIT_NAME_FIXED: "nazwy bezpiecznika nie można ustawić: określa ją kod",
    ReasonCode.CIRCUIT_KEY_INVALID: (
        "{given} nie jest bezpiecznikiem: podaj jego nazwę albo PRZEPŁYW/KROK, jeśli nie ma nazwy"
    ),
    ReasonCode.NOTIFICATION_NOT_FOUND: (
        "powiadomienie {id} nie istnieje; `redrive notifications list` pokazuje wszystkie"
    ),
    ReasonCode.RULE_URL_REFUSED: (
        "{why} To dotyczy adresów w kodzie; zapisana reguła wskazuje kanał zarejestrowany w kodzie."
    ),
    ReasonCode.RULE_NOT_FOUND: "dla tego celu nie zapisano reguły",
    ReasonCode.MESSAGE_NOT_FOUND: (
        "wiadomość {id} nie istnieje; dostarczone wiadomości są przechowywane przez jeden dzień"
    ),
    ReasonCode.MESSAGE_SINK_UNKNOWN: "wiadomość {id} nie ma doręczenia[ do odbiorcy {sink!r}]; jej odbiorcy: {known}",
    ReasonCode.MESSAGE_OVER: "wiadomość {id} jest zakończona: {ended}",
    ReasonCode.SINK_NOT_FOUND: "odbiorca {name} nie istnieje; są: {known}",
    ReasonCode.SCHEDULE_IN_CODE: (
        "harmonogram {schedule!r} przepływu pracy {workflow!r} jest w kodzie działającego procesu roboczego: usuń go "
        "tam albo wstrzymaj"
    ),
    ReasonCode.SCHEDULE_NOT_FOUND: (
        "przepływ pracy {workflow!r} nie ma harmonogramu {schedule!r} dla organizacji {tenant!r}; są: {known}"
    ),
    ReasonCode.KEY_OF_OTHER_CREDENTIAL: (
        "klucz idempotencji tego startu należy do przebiegu {run} i do innego poświadczenia: użyj tamtego, "
        "poświadczenia z prawem do danych albo nowego klucza (przepływ pracy {workflow!r}, organizacja "
        "{tenant!r})"
    ),
    ReasonCode.EVENT_KEY_TWICE: "zdarzenie jest swoim kluczem idempotencji: pomiń idempotency_key",
    ReasonCode.SEARCH_NEEDS_PAYLOADS: (
        "wyszukiwanie tekstu czyta też ukryte wartości: wymaga prawa do danych; filtruj według przepływu "
        "pracy, kroku, kodu, kategorii, odcisku lub etykiety"
    ),
    ReasonCode.OWN_TENANT: "to jest twoja organizacja: jej wyłączenie odcięłoby ci dostęp",
    ReasonCode.CONFIRMATION_NEEDED: "niczego nie usunięto: powtórz nazwę organizacji w `confirm`",
    ReasonCode.TENANT_NEEDED: "to wymaga jednej organizacji: wskaż ją (na stronie: u góry) zamiast wszystkich",
    ReasonCode.TOKEN_TENANT_FIXED: "token dla wybranych przepływów pracy działa tylko w swojej organizacji",
    ReasonCode.TOKEN_SCOPE_TOO_SMALL: "token dla wybranych przepływów pracy nie może tego zrobić",
    ReasonCode.CROSS_SITE_REQUEST: "żądania z ciasteczkiem muszą pochodzić z tej strony; gdzie indziej użyj tokenu",
    ReasonCode.ORIGIN_NEEDED: "żądania z ciasteczkiem wymagają nagłówka Origin lub Sec-Fetch-Site",
    ReasonCode.TOKEN_NEEDED: "serwer wymaga poświadczenia: umieść token w {variable}",
    ReasonCode.OTHER_TENANT: "to żądanie dotyczy organizacji {tenant!r}: nie może zmieniać danych innej organizacji",
    ReasonCode.TOKEN_WORKFLOWS: "ten token jest tylko dla tych przepływów pracy: {workflows:list}",
    ReasonCode.TOKEN_LACKS_WORKFLOWS: (
        "ten token jest tylko dla tych przepływów pracy: {workflows:list}. Te dane dotyczą wszystkich przepływów"
    ),
    ReasonCode.TOKEN_WORKFLOW_NEEDED: "ten token jest dla kilku przepływów pracy: podaj jeden z nich: {workflows:list}",
    ReasonCode.TOKEN_CANNOT_SAVE_VIEWS: (
        "token dla wybranych przepływów pracy nie może zapisywać widoków: widoki dotyczą wszystkich przepływów"
    ),
    ReasonCode.RUN_NOT_SHOWN: "wykonanie można zmienić tylko przez widok, który je pokazał",
    ReasonCode.ENGINE_ONLY: "może to zrobić tylko silnik, nie użytkownik organizacji",
    ReasonCode.TEXT_SEARCH_SEALED: (
        "nie można szukać w tekście, gdy {variable} go szyfruje: filtruj według przepływu pracy, kroku, kodu, "
        "kategorii lub odcisku albo według indeksu, czyli pola zadeklarowanego przez przepływ pracy"
    ),
    ReasonCode.STEP_STATEMENT_REFUSED: (
        "nie można użyć {statement} w kroku transakcyjnym: jego transakcja zaczyna się sama i jest zatwierdzana razem "
        "z zapisem kroku"
    ),
    ReasonCode.TOPIC_PATTERN_INVALID: (
        "{given} nie jest wzorcem tematów: podaj temat, na przykład orders.paid, początek, na przykład orders.*, "
        "albo * dla wszystkich tematów"
    ),
    ReasonCode.TOPICS_NEEDED: "nie podano tematu: podaj co najmniej jeden albo * dla wszystkich tematów",
    ReasonCode.TOPIC_INVALID: (
        "{given} nie może być tematem: użyj słów z liter, cyfr, _ i -, połączonych kropkami, najwyżej {longest} "
        "znaków, na przykład orders.paid"
    ),
    ReasonCode.MESSAGE_KEY_INVALID: (
        "{given} nie może być kluczem wiadomości: użyj tekstu o długości od 1 do {longest} znaków bez znaków "
        "sterujących, na przykład numeru zamówienia"
    ),
    ReasonCode.TENANT_NAME_RESERVED: "{name!r} nie może być nazwą organizacji: oznacza wszystkie organizacje",
    ReasonCode.ROLE_UNKNOWN: "rola {given} nie istnieje; dostępne role: {known:list}",
    ReasonCode.ROLE_NEEDED: (
        "wymaga to roli {role} lub wyższej[ ({permission})], a Twoja to {own}: poproś użytkownika, który ją ma"
    ),
    ReasonCode.PAYLOAD_PERMISSION_NEEDED: (
        "wymaga to uprawnienia do podglądu danych, którego nie masz: poproś użytkownika, który je ma"
    ),
    ReasonCode.OTHER_TENANT_FORBIDDEN: (
        "tylko OWNER może działać w organizacji innej niż {tenant!r}: poproś użytkownika z tą rolą albo pomiń `tenant`"
    ),
    ReasonCode.TOKEN_LIMITED: (
        "ten token jest ograniczony do przepływów pracy {workflows:list} i nie może nadać szerszych uprawnień"
    ),
    ReasonCode.EVENT_HAS_KEY: "zdarzenie samo jest kluczem idempotencji; pomiń idempotency_key",
    ReasonCode.START_ITEM_INVALID: (
        "start_many przyjmuje krotki argumentów albo Start(...), a nie {type}; dla jednego argumentu napisz (value,)"
    ),
    ReasonCode.TOO_MANY_MESSAGES: "krok publikuje najwyżej {limit:,} komunikatów; rozłóż je na kilka kroków",
    # what is wrong with a value that a person typed
    ReasonCode.OBJECT_NEEDED: "{field} musi być obiektem, który przypisuje nazwom wartości, a nie {given}",
    ReasonCode.FLAG_NEEDED: "{field} musi mieć wartość True albo False, a nie {given}",
    ReasonCode.SHORT_TEXT_NEEDED: (
        "{field} musi być tekstem o długości od 1 do {longest} znaków drukowalnych, a nie {given}"
    ),
    ReasonCode.LIMIT_INVALID: "limit to {given}; podaj liczbę całkowitą od 1 do {most}",
    ReasonCode.LONG_TEXT_NEEDED: ("{field} musi być tekstem o długości od 1 do {longest:,} znaków, a nie {given}"),
    ReasonCode.TAGS_NEEDED: "etykiety muszą być listą słów, a nie {given}",
    ReasonCode.TEXT_UNSTORABLE: "{field} zawiera znak NUL albo niepełny znak, którego baza danych nie przechowa",
    ReasonCode.FILTER_VALUE_INVALID: "{field}: oczekiwano: {expected}, podano: {given}",
    ReasonCode.FILTER_TEXT_EMPTY: "pole {field} jest puste: pomiń je, aby znaleźć wszystko",
    ReasonCode.FILTER_TIME_ZONE_NEEDED: "pole {field} wymaga strefy czasowej, na przykład datetime.now(UTC)",
    ReasonCode.FILTER_TIME_OUT_OF_RANGE: (
        "{field}: oczekiwano mikrosekund od 1970 r., w latach od 1 do 9999; {given} jest poza zakresem"
    ),
    ReasonCode.PAGE_LIMIT_INVALID: "limit musi być liczbą całkowitą od 1 do {largest}, a nie {given}",
    ReasonCode.CURSOR_INVALID: "{given} nie jest kursorem listy: podaj kursor zwrócony przez stronę albo żaden",
    ReasonCode.WHOLE_NUMBER_NEEDED: "{field} musi być liczbą całkowitą od {least} do {most}, a nie {given}",
    ReasonCode.ENGINE_NAME_TAKEN: "nazwą {name!r} podpisuje się silnik: podaj w `by` własną nazwę",
    ReasonCode.NOT_JSON: "{what}: to nie jest poprawny JSON: {why}",
    ReasonCode.MASKED_OUTPUT: "{paths:list}: {mask} zastępuje ukrytą wartość: wpisz prawdziwą ({what})",
    ReasonCode.WORKFLOW_INPUT: "dane wejściowe przepływu pracy {workflow!r}",
    ReasonCode.STEP_OUTPUT: "wynik kroku {step!r}",
    ReasonCode.VALUE_INVALID: "{what}: nieprawidłowa wartość: {faults:faults}[ (i jeszcze {more})]",
    ReasonCode.FAULTS: "{faults:faults}[ (i jeszcze {more})]",
    ReasonCode.FAULT: "[{path}: ]{why}",
    ReasonCode.FIELD_UNKNOWN: "nieznane pole[; oczekiwano: {known}]",
    ReasonCode.FORM_LACKS_FIELDS: "formularz nie ma pól na tę zmianę: kontynuuj edycję jako JSON",
    ReasonCode.MODE_KEEPS_INPUT: "ten tryb zachowuje dane wejściowe: cofnij zmianę albo wybierz inny tryb",
    ReasonCode.INPUT_OBJECT_NEEDED: "wpisz obiekt, który przypisuje nazwom wartości, na przykład {example}",
    ReasonCode.POLICY_OBJECT_NEEDED: "wpisz zasady ponawiania jako obiekt, na przykład {example}",
    ReasonCode.STEP_CHOICE_NEEDED: "wybierz krok, od którego kontynuować",
    ReasonCode.OUTPUT_NEEDED: "wpisz wynik kroku jako JSON, na przykład {example}",
    ReasonCode.OUTPUT_NOT_JSON: (
        "wynik nie jest poprawnym JSON-em: {why}. Tekst wymaga cudzysłowów, na przykład {example}"
    ),
    ReasonCode.JSON_SYNTAX: "wiersz {line}, kolumna {column}: {why}",
    ReasonCode.JSON_TOO_DEEP: "JSON jest zagnieżdżony zbyt głęboko: zapisz go płasko albo przekaż odwołanie",
    ReasonCode.JSON_NUMBER_TOO_LONG: "liczba ma za dużo cyfr; zapisz ją jako tekst",
    ReasonCode.JSON_NUMBER_TOO_LARGE: "liczby {number} nie można zapisać, bo jest za duża; zapisz ją jako tekst",
    ReasonCode.JSON_NAME_TWICE: "wiersz {line}: {name} występuje dwa razy, najpierw w wierszu {first}; zostaw jedno",
    ReasonCode.JSON_CONSTANT: "{word} nie jest poprawnym JSON-em; pomiń to albo zapisz jako tekst",
    # what is wrong with one place of a value
    ReasonCode.PYDANTIC_RULE: "{message}",
    ReasonCode.NESTED_TOO_DEEP: "zagnieżdżenie ma ponad {most} poziomów; zapisz to płasko albo przekaż odwołanie",
    ReasonCode.NUMBER_TOO_LONG: "liczba ma za dużo cyfr; przekaż ją jako tekst",
    ReasonCode.JSON_INVALID: "to nie jest poprawny JSON ({why})",
    ReasonCode.NOT_STORABLE_AS_ANNOTATED: "wartości typu {type} nie można zapisać zgodnie z adnotacją",
    ReasonCode.REFERS_TO_ITSELF: "odwołuje się do siebie; przekaż dane bez cykli",
    ReasonCode.SURROGATES_JOIN: "dwa surogaty stałyby się jednym znakiem; przekaż poprawny tekst",
    ReasonCode.NOT_STORABLE: "{kind}: tego nie można zapisać; przekaż dane albo odwołanie",
    ReasonCode.INTEGER_TOO_LONG: "liczby całkowitej o ponad 4300 cyfrach nie można zapisać; przekaż ją jako tekst",
    ReasonCode.NO_JSON_FORM: "{value} nie ma tu postaci JSON; użyj adnotacji float",
    ReasonCode.TYPE_DIFFERS: "oczekiwano {expected}, otrzymano {found}",
    ReasonCode.ANNOTATION_DIFFERS: "ta wartość typu {type} nie jest zgodna ze swoją adnotacją",
    ReasonCode.NOT_STORABLE_HERE: "wartości typu {type} nie można tu zapisać ({why})",
    ReasonCode.NOT_READABLE_BACK: "nie można tego odczytać z powrotem: {error_type}: {message}",
    ReasonCode.CHANGED_BY_READING: "odczyt zmieniłby tę wartość; przekaż tekst bez pojedynczych surogatów",
    ReasonCode.UNION_AMBIGUOUS: (
        "wartość typu {type} zostałaby odczytana jako {other}; dodaj członkom unii pole Literal, które je rozróżnia, "
        "albo umieść węższy typ jako pierwszy"
    ),
    ReasonCode.ARGUMENTS_TOO_MANY: "{function}() przyjmuje argumenty pozycyjne w liczbie {taken}, podano {given}",
    ReasonCode.ARGUMENT_TWICE: "{function}() otrzymała argument {argument!r} dwa razy",
    ReasonCode.ARGUMENT_MISSING: "{function}() wymaga argumentu {argument!r}, którego nie podano",
    ReasonCode.ARGUMENT_UNKNOWN: "{function}() nie ma parametru {argument!r}[; jej parametry to {known:list}]",
    ReasonCode.TEMPLATE_FIELD_MISSING: "pole {name!r} nie istnieje[ w {parent}][ ({found})]",
    ReasonCode.TEMPLATE_TOO_LARGE: "wypełniony szablon jest za duży; użyj mniejszej liczby pól albo mniejszych pól",
    ReasonCode.HEADER_VALUE_INVALID: "nagłówek nie może zawierać znaków sterujących, które są w tej wartości",
    ReasonCode.PATH_VALUE_INVALID: "wartość jest pusta albo zawiera '.' lub '..', co zmieniłoby ścieżkę",
    ReasonCode.NOT_UNICODE: "tekst nie jest poprawnym tekstem Unicode",
    ReasonCode.NOT_PLAIN_JSON: "wartość nie jest zwykłym JSON-em",
    ReasonCode.EXPECTED: "oczekiwano: {expected}, znaleziono: {found}",
    ReasonCode.EXPECTED_NOTHING: "nie oczekiwano tu żadnej wartości, znaleziono: {found}",
    ReasonCode.FIELD_MISSING: "oczekiwano: {expected}, ale brakuje tego pola",
    ReasonCode.FIELD_NAME_INVALID: "nazwa pola powinna być: {expected}",
    ReasonCode.EXPECTED_UNIQUE: "każdy element może wystąpić tylko raz, znaleziono powtórzenie",
    ReasonCode.EXPECTED_AT_LEAST: "oczekiwano liczby nie mniejszej niż {bound}, znaleziono mniejszą",
    ReasonCode.EXPECTED_AT_MOST: "oczekiwano liczby nie większej niż {bound}, znaleziono większą",
    ReasonCode.EXPECTED_ABOVE: "oczekiwano liczby większej niż {bound}, znaleziono równą lub mniejszą",
    ReasonCode.EXPECTED_BELOW: "oczekiwano liczby mniejszej niż {bound}, znaleziono równą lub większą",
    ReasonCode.EXPECTED_MULTIPLE: "oczekiwano wielokrotności {step}, znaleziono inną liczbę",
    ReasonCode.EXPECTED_PATTERN: "oczekiwano tekstu zgodnego z /{pattern}/, znaleziono inny",
    ReasonCode.TOO_FEW_ITEMS: (
        "oczekiwano co najmniej {n} elementu, znaleziono {found}|oczekiwano co najmniej {n} elementów, "
        "znaleziono {found}"
    ),
    ReasonCode.TOO_MANY_ITEMS: (
        "oczekiwano co najwyżej {n} elementu, znaleziono {found}|oczekiwano co najwyżej {n} elementów, "
        "znaleziono {found}"
    ),
    ReasonCode.TOO_FEW_FIELDS: (
        "oczekiwano co najmniej {n} pola, znaleziono {found}|oczekiwano co najmniej {n} pól, znaleziono {found}"
    ),
    ReasonCode.TOO_MANY_FIELDS: (
        "oczekiwano co najwyżej {n} pola, znaleziono {found}|oczekiwano co najwyżej {n} pól, znaleziono {found}"
    ),
    ReasonCode.TEXT_TOO_SHORT: (
        "oczekiwano co najmniej {n} znaku, znaleziono {found}|oczekiwano co najmniej {n} znaków, znaleziono {found}"
    ),
    ReasonCode.TEXT_TOO_LONG: (
        "oczekiwano co najwyżej {n} znaku, znaleziono {found}|oczekiwano co najwyżej {n} znaków, znaleziono {found}"
    ),
    ReasonCode.ONE_OF: "{options:or}[ lub jeden z {more} innych]",
    ReasonCode.KIND_OBJECT: "obiekt",
    ReasonCode.KIND_LIST: "lista",
    ReasonCode.KIND_LIST_OF: "lista, {n} element|lista, {n} elementy|lista, {n} elementów",
    ReasonCode.KIND_TEXT: "tekst",
    ReasonCode.KIND_INTEGER: "liczba całkowita",
    ReasonCode.KIND_NUMBER: "liczba",
    ReasonCode.KIND_FRACTION: "liczba z częścią ułamkową",
    ReasonCode.KIND_BOOLEAN: "prawda lub fałsz",
    ReasonCode.KIND_NULL: "null",
    ReasonCode.KIND_VALUE: "wartość",
    ReasonCode.KIND_SCALAR: "pojedyncza wartość",
    ReasonCode.KIND_OTHER_VALUE: "inna wartość",
    ReasonCode.KIND_FOREIGN: "wartość, której nie ma w JSON",
    ReasonCode.KIND_TIME: "czas (datetime) lub mikrosekundy od 1970 r.",
    ReasonCode.KIND_STATUS: "nazwa stanu",
}

POLISH = Catalogue(texts=_TEXTS, form=_plural_form, either=" lub ")
