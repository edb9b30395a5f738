;;; qwen-companion-inspector-test.el --- Tests of the context inspector  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Code:

(require 'qwen-companion-test-helper)

(defmacro qwen-companion-inspector-test--with (files &rest body)
  "Run BODY in a project with FILES as if the mode were on and ready."
  (declare (indent 1) (debug t))
  `(qwen-companion-test-with-files ,files
     (qwen-companion-test-with-backend
       (let ((qwen-companion-backend--state 'ready)
             (qwen-companion-backend--server
              (qwen-companion-test-server
               :sessions nil))
             (kill-ring nil)
             (interprogram-cut-function nil))
         (save-window-excursion
           (delete-other-windows)
           (unwind-protect
               (progn ,@body)
             (qwen-companion-inspector-forget)))))))

(defun qwen-companion-inspector-test--connect (id &rest more)
  "Let a CLI connect as session ID; MORE are keys and values about it."
  (qwen-companion--on-sessions
   (list :sessions
         (list (append more
                       (list :id id :protocol "2025-06-18" :client "Qwen Code"
                             :version "0.15.1" :streaming t))))))

(defun qwen-companion-inspector-test--gone (ids)
  "Let the CLIs of the sessions IDS disconnect."
  (qwen-companion--on-sessions (list :sessions nil :gone ids)))

(defun qwen-companion-inspector-test--told (&rest files)
  "Report that the session \"s1\" was told of FILES, names or entries."
  (qwen-companion-inspector-test--tell
   "s1" (mapcar (lambda (file)
                  (if (stringp file) (qwen-companion-inspector-test--file file) file))
                files)))

(defun qwen-companion-inspector-test--file (path &rest more)
  "Return the entry of PATH, in focus two minutes ago, with MORE about it."
  `(:path ,(expand-file-name path) :time ,(- (floor (* 1000 (float-time))) 120500) ,@more))

(defun qwen-companion-inspector-test--active (path &optional selection)
  "Return the entry of PATH as the active one, with SELECTION in it."
  (qwen-companion-inspector-test--file
   path :active t :line 4 :character 18 :selection selection))

(defun qwen-companion-inspector-test--tell (id files &rest more)
  "Report that the session ID was told of the entries FILES five seconds ago.
MORE are keys and values that come first; :trust and :pretty are those of the
context."
  (qwen-companion-inspector-on-context-sent
   (append more
           (list :session id :everywhere nil
                 :roots (list (directory-file-name default-directory))
                 :sent (- (floor (* 1000 (float-time))) 5500)
                 :text "{\"jsonrpc\": 2}"
                 :context (list :trust (plist-get more :trust) :files files
                                :text (or (plist-get more :pretty) "{}"))))))

(defun qwen-companion-inspector-test--exclude (&rest exclusions)
  "Report EXCLUSIONS, each (FILE RULE) or (FILE RULE SESSION)."
  (qwen-companion-inspector-on-exclusions
   (list :exclusions
         (mapcar (pcase-lambda (`(,file ,rule ,session))
                   (list :path (expand-file-name file) :rule rule :session session))
                 exclusions))))

(defun qwen-companion-inspector-test--text ()
  "Return the text of the inspector once it has been redrawn."
  (qwen-companion-test-wait-for
   (null (buffer-local-value 'qwen-companion-timers--soon (get-buffer "*qwen-companion context*"))))
  (with-current-buffer qwen-companion-inspector--buffer (substring-no-properties (buffer-string))))

(defun qwen-companion-inspector-test--shows (&rest regexps)
  "Check that the inspector shows REGEXPS, and return its text."
  (declare (indent 0))
  (let ((text (qwen-companion-inspector-test--text)))
    (dolist (regexp regexps text)
      (should (string-match-p regexp text)))))

(defmacro qwen-companion-inspector-test--with-cli (files &rest body)
  "Run BODY with FILES in the inspector, which shows the CLI \"s1\"."
  (declare (indent 1) (debug t))
  `(qwen-companion-inspector-test--with ,files
     (qwen-companion-inspector-test--connect "s1")
     (qwen-companion-context)
     ,@body))

(defun qwen-companion-inspector-test--go-to (text)
  "Put point at TEXT in the inspector, which is selected, once it is drawn."
  (qwen-companion-inspector-test--text)
  (qwen-companion-test-go-to text)
  (goto-char (match-beginning 0)))

(defun qwen-companion-inspector-test--line ()
  "Return the line at point."
  (buffer-substring-no-properties (line-beginning-position) (line-end-position)))

(defun qwen-companion-inspector-test--timers ()
  "Return how many timers of the inspector there are."
  (cl-count-if (lambda (timer)
                 (string-match-p "\\`qwen-companion-\\(?:inspector\\|timers\\)-"
                                 (format "%s" (timer--function timer))))
               timer-list))

;;; What it shows

(ert-deftest qwen-companion-inspector-test-tools-that-were-called ()
  "Each call is listed once with the size of its answer, which can be copied."
  (qwen-companion-inspector-test--with-cli nil
    (let ((call (list :client "Qwen Code 0.24.4" :request "hover(path=\"a\")" :size 12 :ms 7
                      :called (floor (* 1000 (- (float-time) 5.5))) :failed nil
                      :text "| the\n| answer"))
          (kill-ring nil))
      (qwen-companion-inspector-on-tool-called call)
      ;; The Python process tells of it again when it is asked to.
      (qwen-companion-inspector-on-tool-called call)
      (qwen-companion-inspector-on-tool-called
       (list :client "" :request "symbols()" :size 3 :ms 1 :called 0 :failed t :text "No."))
      (let ((text (qwen-companion-inspector-test--text)))
        (should (string-match-p
                 "^  hover(path=\"a\")  12 bytes, 7 ms, [0-9]+ s ago, Qwen Code 0\\.24\\.4 \\.\\.\\.$" text))
        (should (= 1 (cl-count-if (lambda (line) (string-search "hover" line))
                                  (split-string text "\n"))))
        (should (string-match-p "^  symbols()  refused, 3 bytes" text))
        (should-not (string-search "| answer" text)))
      (qwen-companion-inspector-test--go-to "hover")
      (qwen-companion-inspector-copy-json)
      (should (equal "| the\n| answer" (current-kill 0)))
      (qwen-companion-inspector-toggle-fold)
      (should (string-search "| answer" (qwen-companion-inspector-test--text))))))

(ert-deftest qwen-companion-inspector-test-shows-answers-to-hooks ()
  "The answers to hooks are counted, and shown one by one on demand."
  (qwen-companion-inspector-test--with-cli nil
    (should-not (string-search "Hooks" (qwen-companion-inspector-test--text)))
    (let ((now (floor (* 1000 (float-time)))))
      (qwen-companion-inspector-on-hook-answers
       (list :session "s1"
             :answers
             (list (list :event "PermissionRequest" :tool "edit" :count 2 :time (- now 5500)
                         :answer "denied: The user rejected\nthis change.")
                   (list :event "Stop" :tool "" :count 1 :time (- now 120500)
                         :answer "no decision")))))
    (should-not (string-search "rejected" (qwen-companion-inspector-test--shows "^  Hooks +3 answers, last [0-9]+ s ago \\.\\.\\.$")))
    (qwen-companion-inspector-test--go-to "Hooks")
    (qwen-companion-inspector-toggle-fold)
    (qwen-companion-inspector-test--shows
      "^    PermissionRequest edit  2 x, last [0-9]+ s ago  denied: The user rejected.+this change\\.$"
      "^    Stop  1 x, last 2 min ago  no decision$")
    ;; It goes with the CLI.
    (qwen-companion-inspector-test--gone '("s1"))
    (should-not (string-search "Hooks" (qwen-companion-inspector-test--text)))))

(ert-deftest qwen-companion-inspector-test-shows-the-context-of-a-cli ()
  "Name, process, place, trust, files with ages, cursor and selection."
  (qwen-companion-inspector-test--with '(("main.py" "one\n") ("doc/notes.txt" "two\n"))
    (qwen-companion-inspector-test--connect "s1" :pid 4711 :directory (expand-file-name "~/src"))
    (qwen-companion-context)
    (qwen-companion-inspector-test--tell
     "s1" (list (qwen-companion-inspector-test--active "main.py" "return\n  1")
                (qwen-companion-inspector-test--file "doc/notes.txt"))
     :trust 'trusted)
    (let ((text (qwen-companion-inspector-test--shows
                  "^Qwen Code 0\\.15\\.1$"
                  "^  Process +4711 in ~/src$"
                  "^  Trust +the workspace is trusted$"
                  "^  Last update +[0-9]+ s ago$"
                  (concat "Workspace   " (directory-file-name default-directory))
                  ;; Newest first, as it was told.
                  "^    main\\.py +2 min  active at 4:18\n      10 characters selected\nreturn\n  1\n    doc/notes\\.txt +2 min$"
                  "^  JSON +[0-9]+ bytes \\.\\.\\.$")))
      ;; Folded: it is not there.
      (should-not (string-search "jsonrpc" text)))))

(ert-deftest qwen-companion-inspector-test-shows-nothing-that-was-not-told ()
  "The inspector invents nothing that the CLI was not told."
  (qwen-companion-inspector-test--with nil
    (qwen-companion-inspector-test--connect "s1" :client "" :version "" :streaming nil)
    (qwen-companion-context)
    (should-not (string-match-p "JSON\\|Terminal\\|Workspace"
                                (qwen-companion-inspector-test--shows
                                  "^Unnamed CLI$"
                                  "^  Process +unknown$"
                                  "^  Trust +not reported$"
                                  "^  Last update +nothing yet, stream closed$")))
    (unwind-protect
        (progn
          (qwen-companion-places-set "/ssh:far:" '(:home "/home/me"))
          (qwen-companion-inspector-test--connect
           "s2" :place "/ssh:far:" :directory "/ssh:far:/home/me/p" :ancestors '(7 1))
          (qwen-companion-inspector-test--shows "^  Process +7 at far in far:~/p$")
          (qwen-companion-inspector-test--gone '("s2")))
      (qwen-companion-places-forget))
    (qwen-companion-inspector-test--tell
     "s1" nil :trust 'untrusted :everywhere t)
    (qwen-companion-inspector-test--shows
      "^  Workspace +files everywhere$"
      "^  Trust +the workspace is not trusted$"
      "^  Files +none$")))

(ert-deftest qwen-companion-inspector-test-excluded-files-with-their-rule ()
  "Files excluded for all CLIs, and files excluded for one."
  (qwen-companion-inspector-test--with nil
    (qwen-companion-inspector-test--connect "s1" :pid 4711)
    (qwen-companion-inspector-test--connect "s2" :client "Gemini CLI" :version "0.34.0")
    (qwen-companion-context)
    (qwen-companion-inspector-test--exclude
     '("/p/.env" "environment variables, often secret (.env*)")
     '("/q/other.py" "outside /p" "s1")
     '("/q/gone.py" "outside /p" "gone"))
    (let ((text (qwen-companion-inspector-test--shows "^Hidden from all CLIs\n    /p/\\.env  environment variables, often secret (\\.env\\*)\n\nHidden from Qwen Code 0\\.15\\.1, process 4711\n    /q/other\\.py  outside /p\n")))
      (should-not (string-search "gone" text)))))

(ert-deftest qwen-companion-inspector-test-unsaved-and-shown-files-are-marked ()
  (qwen-companion-inspector-test--with '(("main.py" "one\n") (".env" "two\n"))
    (with-current-buffer (find-file-noselect "main.py") (insert "more"))
    (with-current-buffer (find-file-noselect ".env") (setq qwen-companion-exposure 'show))
    (qwen-companion-inspector-test--connect "s1")
    (qwen-companion-context)
    (qwen-companion-inspector-test--told "main.py" ".env")
    (qwen-companion-inspector-test--shows "main\\.py .*unsaved$" "\\.env .*min  shown by you$")))

(ert-deftest qwen-companion-inspector-test-a-selection-that-was-cut ()
  "It says how much of the selection a CLI does not get."
  (qwen-companion-inspector-test--with `(("main.py" ,(make-string 20000 ?x)))
    (switch-to-buffer (find-file-noselect "main.py"))
    (let ((transient-mark-mode t))
      (push-mark (point-min) t t)
      (goto-char (point-max))
      (qwen-companion-test-context-update)
      (qwen-companion-inspector-test--connect "s1")
      (qwen-companion-context)
      (qwen-companion-inspector-test--told (qwen-companion-inspector-test--active "main.py" (make-string 16384 ?x)))
      (let ((text (qwen-companion-inspector-test--text)))
        (should (string-search "16384 characters selected, 3616 more not sent ...\n" text))
        (should (< (length text) 2000)))
      ;; Still the same is selected, but that has not been told yet.
      (qwen-companion-inspector-test--told (qwen-companion-inspector-test--active "main.py" "xxx"))
      (qwen-companion-inspector-test--shows "      3 characters selected$"))))

(ert-deftest qwen-companion-inspector-test-nobody-is-connected ()
  "It says so, and why or how."
  (qwen-companion-inspector-test--with nil
    (qwen-companion-context)
    (qwen-companion-inspector-test--shows "\\`No CLI is connected.*qwen-companion-run")
    (qwen-companion-test-with-roots nil
      (qwen-companion-inspector-changed)
      (qwen-companion-inspector-test--shows "no file, Dired buffer or terminal is open"))
    (qwen-companion-test-with-failure "Python has gone"
      (run-hook-with-args 'qwen-companion-state-functions 'error)
      (qwen-companion-inspector-changed)
      (qwen-companion-inspector-test--shows "not running: Python has gone"))))

(ert-deftest qwen-companion-inspector-test-the-mode-is-off ()
  "The command says so and opens nothing."
  (let ((before (buffer-list)))
    (qwen-companion-test-refused "turn it on with M-x qwen-companion-mode" (qwen-companion-context))
    (should (equal before (buffer-list)))))

(ert-deftest qwen-companion-inspector-test-hostile-text ()
  "Names, rules and selections break no line and turn nothing around."
  (qwen-companion-inspector-test--with nil
    (qwen-companion-inspector-test--connect
     "s1" :client "Evil\nNot told to any CLI" :directory "/tmp/a\nb")
    (qwen-companion-context)
    (qwen-companion-inspector-test--told (qwen-companion-inspector-test--active
                                          "/tmp/x\n    y\u202E.py" "a\e[31m\r\nb\0\tc"))
    (qwen-companion-inspector-test--exclude '("/tmp/\n.env" "rule\nNot a line"))
    (qwen-companion-inspector-test--shows
      "^Evil\\\\nNot told to any CLI 0\\.15\\.1$"
      "in /tmp/a\\\\nb$"
      "^    /tmp/x\\\\n    y\\\\u202E\\.py +2 min"
      "^a\\\\u001B\\[31m\\\\u000D\nb\\\\u0000\tc$"
      "^    /tmp/\\\\n\\.env  rule\\\\nNot a line$")
    ;; The item is still that file.
    (qwen-companion-inspector-test--go-to "/tmp/x")
    (should-error (qwen-companion-inspector-visit) :type 'user-error)
    ;; Text properties do nothing either.
    (qwen-companion-inspector-test--exclude
     (list "/p/.env" (propertize "rule" 'display "shown" 'keymap (make-sparse-keymap))))
    (qwen-companion-inspector-test--go-to "rule")
    (should-not (get-text-property (point) 'display))
    (should-not (get-text-property (point) 'keymap))))

;;; Keys

(ert-deftest qwen-companion-inspector-test-the-exact-json-is-copied ()
  "JSON that arrived by file is copied exactly, and its file is deleted."
  (qwen-companion-inspector-test--with-cli nil
    (qwen-companion-inspector-test--go-to "Qwen Code")
    (should-error (qwen-companion-inspector-copy-json) :type 'user-error)
    (let* ((json (concat "{\"a\": \"" (make-string 16000 ?\u2603) "\"}"))
           (file (expand-file-name "text-1" (qwen-companion-backend-spool))))
      (qwen-companion-test-write file json)
      (qwen-companion-inspector-test--tell
       "s1" (list (qwen-companion-inspector-test--file "main.py")) :text nil :text-file file)
      (should-not (file-exists-p file))
      (dolist (item '("Qwen Code" "main.py" "JSON"))
        (setq kill-ring nil)
        (qwen-companion-inspector-test--go-to item)
        (qwen-companion-inspector-copy-json)
        (should (equal json (car kill-ring)))))
    (qwen-companion-inspector-test--exclude '("/p/.env" "rule"))
    (qwen-companion-inspector-test--go-to ".env")
    (should-error (qwen-companion-inspector-copy-json) :type 'user-error)))

(ert-deftest qwen-companion-inspector-test-folding ()
  "JSON, selections and sections."
  (qwen-companion-inspector-test--with-cli nil
    (qwen-companion-inspector-test--tell
     "s1" (list (qwen-companion-inspector-test--active "main.py" "1\n2\n3\n4 \"{[,:\\"))
     :pretty "{\n  \"jsonrpc\": \"2.0\"\n}")
    (should-not (string-search "4 \"" (qwen-companion-inspector-test--text)))
    (qwen-companion-inspector-test--go-to "main.py")
    (qwen-companion-inspector-toggle-fold)
    (should (string-search "1\n2\n3\n4 \"{[,:\\\n" (qwen-companion-inspector-test--text)))
    (should (looking-at-p "main\\.py"))
    (qwen-companion-inspector-toggle-fold)
    (should-not (string-search "4 \"" (qwen-companion-inspector-test--text)))
    (qwen-companion-inspector-test--go-to "JSON")
    (qwen-companion-inspector-toggle-fold)
    (should (string-search "\n{\n  \"jsonrpc\": \"2.0\"\n}\n" (qwen-companion-inspector-test--text)))
    (goto-char (point-min))
    (qwen-companion-inspector-toggle-fold)
    (should (equal "Qwen Code 0.15.1 ...\n\n" (qwen-companion-inspector-test--text)))
    (qwen-companion-inspector-toggle-fold)
    (should (string-search "main.py" (qwen-companion-inspector-test--text)))
    (qwen-companion-inspector-test--exclude '("/p/.env" "rule"))
    (qwen-companion-inspector-test--go-to ".env")
    (qwen-companion-inspector-toggle-fold)
    (should (equal "Hidden from all CLIs ..." (qwen-companion-inspector-test--line)))))

(ert-deftest qwen-companion-inspector-test-next-and-previous ()
  "They go from item to item and stop at the ends."
  (qwen-companion-inspector-test--with-cli nil
    (qwen-companion-inspector-test--told (qwen-companion-inspector-test--active "main.py" "1\n2"))
    (qwen-companion-inspector-test--exclude '("/p/.env" "rule"))
    (qwen-companion-inspector-test--text)
    (goto-char (point-min))
    (dolist (wanted '("main\\.py" "JSON" "Hidden from" "/p/\\.env"))
      (qwen-companion-inspector-next)
      (should (looking-at-p wanted)))
    (should-error (qwen-companion-inspector-next) :type 'user-error)
    (qwen-companion-inspector-previous 4)
    (should (looking-at-p "Qwen Code"))
    (should-error (qwen-companion-inspector-previous) :type 'user-error)))

(ert-deftest qwen-companion-inspector-test-going-to-things ()
  "A file shows in another window, a CLI its terminal."
  (qwen-companion-inspector-test--with '(("main.py" "one\n") ("closed.py" "two\n"))
    (let* ((buffer (find-file-noselect "main.py"))
           (terminal (generate-new-buffer "*the terminal*"))
           (process (make-process :name "cli" :buffer terminal :noquery t
                                  :command '("sleep" "60"))))
      (unwind-protect
          (progn
            (qwen-companion-inspector-test--connect
             "s1" :pid 1 :ancestors (list (process-id process)))
            (qwen-companion-inspector-test--connect "s2" :client "Elsewhere")
            (qwen-companion-context)
            (qwen-companion-inspector-test--told "main.py" "closed.py" "deleted.py")
            (pcase-dolist (`(,item ,name) `(("main.py" ,(buffer-name buffer))
                                            ("closed.py" "closed.py")
                                            ("Qwen Code" "*the terminal*")
                                            ("*the terminal*" "*the terminal*")))
              (select-window (get-buffer-window "*qwen-companion context*"))
              (qwen-companion-inspector-test--go-to item)
              (qwen-companion-inspector-visit)
              (should (equal name (qwen-companion-test-selected)))
              (select-window (get-buffer-window "*qwen-companion context*"))
              (goto-char (point-max))
              (should (member "CLI-Context" (qwen-companion-test-context-menu item)))
              (should (looking-at-p (regexp-quote item)))
              (goto-char (point-max))
              (qwen-companion-test-click 'mouse-2 item)
              (should (equal name (qwen-companion-test-selected)))
              (should (get-buffer-window "*qwen-companion context*")))
            (select-window (get-buffer-window "*qwen-companion context*"))
            (dolist (item '("deleted.py" "Elsewhere"))
              (qwen-companion-inspector-test--go-to item)
              (should-error (qwen-companion-inspector-visit) :type 'user-error)))
        (delete-process process)
        (kill-buffer terminal)))))

(ert-deftest qwen-companion-inspector-test-toggling-a-file ()
  "A told file is hidden, an excluded one shown, then the rules count again."
  (qwen-companion-inspector-test--with '(("main.py" "one\n") (".env" "two\n"))
    (let ((told (find-file-noselect "main.py"))
          (excluded (find-file-noselect ".env"))
          changed)
      (add-hook 'qwen-companion-privacy-changed-hook (lambda () (push (current-buffer) changed)))
      (unwind-protect
          (progn
            (qwen-companion-inspector-test--connect "s1")
            (qwen-companion-context)
            (qwen-companion-inspector-test--told (qwen-companion-inspector-test--file "main.py"))
            (qwen-companion-inspector-test--exclude '(".env" "rule"))
            (pcase-dolist (`(,item ,buffer ,exposure)
                           `(("main.py" ,told hide) ("main.py" ,told nil)
                             (".env" ,excluded show) (".env" ,excluded nil)))
              (qwen-companion-inspector-test--go-to item)
              (qwen-companion-test-messages (qwen-companion-inspector-toggle-exclusion))
              (should (eq exposure (qwen-companion-privacy-exposure buffer)))
              (should (eq buffer (pop changed)))))
        (setq qwen-companion-privacy-changed-hook nil)))))

(ert-deftest qwen-companion-inspector-test-files-that-cannot-be-toggled ()
  "It says why, and nothing changes."
  (qwen-companion-inspector-test--with '(("other/far.py" "one\n") ("gone.py" "two\n")
                                         ("root/in.py" "three\n"))
    (let ((far (find-file-noselect "other/far.py"))
          (new (find-file-noselect "new.py"))
          (inside (find-file-noselect "root/in.py")))
      (qwen-companion-inspector-test--connect "s1")
      (qwen-companion-context)
      (qwen-companion-inspector-test--tell
       "s1" nil :roots (list (expand-file-name "root")))
      (qwen-companion-inspector-test--exclude
       '("other/far.py" "outside" "s1") '("gone.py" "rule") '("new.py" "not on disk")
       '("root/in.py" "named in .qwenignore" "s1"))
      (pcase-dolist (`(,item ,why) '(("far.py" "outside of the project")
                                     ("gone.py" "No buffer visits")
                                     ("new.py" "not on disk")
                                     ("Qwen Code" "Not on a file")))
        (qwen-companion-inspector-test--go-to item)
        (qwen-companion-test-refused (regexp-quote why)
          (qwen-companion-inspector-toggle-exclusion)))
      (should-not (qwen-companion-privacy-exposure far))
      (should-not (qwen-companion-privacy-exposure new))
      (qwen-companion-inspector-test--go-to "in.py")
      (qwen-companion-test-messages (qwen-companion-inspector-toggle-exclusion))
      (should (eq 'show (qwen-companion-privacy-exposure inside))))))

;;; A live buffer

(ert-deftest qwen-companion-inspector-test-point-stays-where-it-is ()
  "A change above keeps point, the mark and the window's start at their items."
  (qwen-companion-inspector-test--with nil
    (dotimes (number 9)
      (qwen-companion-inspector-test--connect (format "s%d" number)))
    (qwen-companion-context)
    (dotimes (number 9)
      (qwen-companion-inspector-test--tell
       (format "s%d" number)
       (list (qwen-companion-inspector-test--file (format "file%d.py" number)))))
    (qwen-companion-inspector-test--go-to "file3.py")
    (set-window-start nil (line-beginning-position))
    (push-mark (point) t t)
    (search-forward "file4")
    (qwen-companion-inspector-test--tell
     "s0" (list (qwen-companion-inspector-test--active "file0.py" "1\n2\n3")))
    (should (string-search "1\n2\n3" (qwen-companion-inspector-test--text)))
    (should (looking-back "file4" (line-beginning-position)))
    (should (equal (point) (window-point)))
    (save-excursion
      (goto-char (window-start))
      (should (string-match-p "file3" (qwen-companion-inspector-test--line)))
      (goto-char (mark t))
      (should (looking-at-p "file3")))
    ;; The CLI goes: the nearest that is left.
    (qwen-companion--on-sessions '(:sessions nil :gone ("s4")))
    (should-not (string-search "file4" (qwen-companion-inspector-test--text)))
    (should (string-match-p "JSON\\|Qwen Code" (qwen-companion-inspector-test--line)))
    (should (search-forward "file5" nil t))))

(ert-deftest qwen-companion-inspector-test-a-cli-goes-while-it-is-shown ()
  "Its section disappears; commands on it are refused."
  (qwen-companion-inspector-test--with-cli nil
    (qwen-companion-inspector-test--told)
    (qwen-companion-inspector-test--exclude '("/p/.env" "rule"))
    (qwen-companion-inspector-test--go-to "Qwen Code")
    (qwen-companion-inspector-test--gone '("s1"))
    ;; Not redrawn yet.
    (should-error (qwen-companion-inspector-visit) :type 'user-error)
    (should-error (qwen-companion-inspector-copy-json) :type 'user-error)
    (should (string-prefix-p "No CLI is connected" (qwen-companion-inspector-test--text)))
    (should (= (point-min) (window-start)))
    (should-error (qwen-companion-inspector-copy-json) :type 'user-error)))

(ert-deftest qwen-companion-inspector-test-changes-are-collected ()
  "Many reports at once are drawn once."
  (qwen-companion-inspector-test--with nil
    (qwen-companion-inspector-test--connect "s1")
    ;; Else the ages may be drawn just then.
    (let ((qwen-companion-inspector--tick-seconds 3600))
      (qwen-companion-context))
    (qwen-companion-inspector-test--text)
    (qwen-companion-test-counting drawn 'qwen-companion-inspector--draw
      (dotimes (number 50)
        (qwen-companion-inspector-test--told (format "%d.py" number)))
      (should (= 0 drawn))
      (qwen-companion-inspector-test--shows "49\\.py")
      (should (= 1 drawn)))))

(ert-deftest qwen-companion-inspector-test-ages-follow-the-clock ()
  "A timer updates the ages only while the inspector is shown."
  (qwen-companion-inspector-test--with-cli nil
    (qwen-companion-inspector-test--told)
    (let ((age (lambda ()
                 (let ((text (qwen-companion-inspector-test--text)))
                   (should (string-match "Last update +\\([0-9]+\\) s ago" text))
                   (string-to-number (match-string 1 text))))))
      (let ((first (funcall age)))
        (should (>= first 5))
        ;; A busy machine may skip one.
        (qwen-companion-test-wait-for (> (funcall age) (1+ first)))))
    (switch-to-buffer "*scratch*")
    (qwen-companion-test-wait-for (= 0 (qwen-companion-inspector-test--timers)))
    ;; What comes meanwhile is there when it is looked at again.
    (qwen-companion-inspector-test--exclude '("/p/.env" "rule"))
    (should (= 0 (qwen-companion-inspector-test--timers)))
    (qwen-companion-context)
    (should (string-search ".env" (qwen-companion-inspector-test--text)))
    (should (= 1 (qwen-companion-inspector-test--timers)))))

(ert-deftest qwen-companion-inspector-test-watching-begins-and-ends ()
  "The Python process reports only while there is an inspector."
  (qwen-companion-inspector-test--with nil
    (qwen-companion-inspector-resend)
    (qwen-companion-inspector-test--told)
    (qwen-companion-inspector-test--exclude '("/p/.env" "rule"))
    (should-not (qwen-companion-test-sent 'watch))
    (qwen-companion-context)
    (qwen-companion-context)
    (should (equal '((:on t)) (qwen-companion-test-sent 'watch)))
    ;; It asks anew on demand; and of another process that takes the place of the first.
    (revert-buffer)
    (should (equal '(watch :on t) (pop qwen-companion-test-calls)))
    (qwen-companion--connected)
    (should (equal '((:on t) (:on t)) (qwen-companion-test-sent 'watch)))
    (kill-buffer "*qwen-companion context*")
    (should (equal '((:on t) (:on t) (:on nil)) (qwen-companion-test-sent 'watch)))
    (should (= 0 (qwen-companion-inspector-test--timers)))
    (should-not (memq #'qwen-companion-inspector-changed qwen-companion-state-functions))
    ;; What was on its way comes too late.
    (qwen-companion-inspector-test--told)
    (qwen-companion-inspector-changed)
    (qwen-companion--connected)
    (should (= 3 (length (qwen-companion-test-sent 'watch))))))

(ert-deftest qwen-companion-inspector-test-a-new-process-takes-over ()
  "Earlier context is still shown, with a note that the process is new."
  (qwen-companion-inspector-test--with-cli nil
    (qwen-companion-inspector-test--told (qwen-companion-inspector-test--file "main.py"))
    (qwen-companion-backend--set-state 'starting)
    (let ((text (qwen-companion-inspector-test--text)))
      (should (string-search "restarting" text))
      (should (string-search "main.py" text)))
    (qwen-companion-backend--set-state 'ready)
    (should-not (string-search "starting" (qwen-companion-inspector-test--text)))))

(ert-deftest qwen-companion-inspector-test-mode-off-closes-it ()
  "Buffer, window, timers and hook go; a buffer that has become another one is let go."
  (qwen-companion-inspector-test--with nil
    (qwen-companion-context)
    (let ((buffer (current-buffer)))
      (qwen-companion-inspector-forget)
      (should-not (buffer-live-p buffer))
      (should (one-window-p))
      (should-not (get-buffer "*qwen-companion context*"))
      (should (= 0 (qwen-companion-inspector-test--timers)))
      (should-not (memq #'qwen-companion-inspector-changed qwen-companion-state-functions)))
    (qwen-companion-context)
    (let ((buffer (current-buffer)))
      (text-mode)
      (should (= 0 (qwen-companion-inspector-test--timers)))
      (should (equal '(:on nil) (car (last (qwen-companion-test-sent 'watch)))))
      (qwen-companion-context)
      (should-not (eq buffer (current-buffer)))
      (kill-buffer buffer))))

(provide 'qwen-companion-inspector-test)
;;; qwen-companion-inspector-test.el ends here
