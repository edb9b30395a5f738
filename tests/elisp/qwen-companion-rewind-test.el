;;; qwen-companion-rewind-test.el --- Tests of going back to before a prompt  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Which turns are undone and what is asked, said and refused.  That the
;; conversation follows is checked with the real Qwen Code in tests/e2e.

;;; Code:

(require 'qwen-companion-recover)
(require 'qwen-companion-rewind)
(require 'qwen-companion-changes-test-helper)

(defconst qwen-companion-rewind-test--old "1\n2\n3\n4\n5\n6\n7\n8\n9\n")

(defmacro qwen-companion-rewind-test--with (&rest body)
  "Run BODY with three turns of a conversation, the second with three files.
Between them are an edit of the user's and a turn of another agent.
`doors' is what the conversation is asked for: the targets, newest first."
  (declare (indent 0) (debug t))
  `(qwen-companion-changes-test-with (list (list "a.txt" qwen-companion-rewind-test--old))
     (let* ((doors nil)
            (began nil)
            (door (lambda (target)
                    (push target doors)
                    (cons "the conversation too" (lambda () (setq began t)))))
            (qwen-companion-rewind-conversation-functions (list door)))
       (ignore doors began)
       (qwen-companion-changes-test-turn "one" '(("first.txt" "first\n")))
       (qwen-companion-changes-test-turn
        "two" '(("a.txt" "1\nX\n3\n4\n5\n6\n7\n8\n9\n") ("made.txt" "made\n")))
       (qwen-companion-changes-test-turn
        "other" '(("a.txt" "1\nX\n3\n4\nother\n6\n7\n8\n9\n")) :session "another" :conversation "another one"
        :prompt "Not yours")
       (qwen-companion-changes-test-turn
        "three" '(("a.txt" "1\nX\n3\n4\nother\n6\nY\n8\n9\n") ("made.txt" "made\nmore\n")))
       (qwen-companion-changes-test-write "a.txt" "1\nX\n3\n4\nother\n6\nY\n8\nmine\n")
       (qwen-companion-changes-test-open)
       (qwen-companion-changes-test-goto "Prompt of two")
       ,@body)))

(defun qwen-companion-rewind-test--files ()
  "Return the texts of the files."
  (mapcar #'qwen-companion-changes-test-bytes '("a.txt" "made.txt" "first.txt")))

(ert-deftest qwen-companion-rewind-test-goes-back-to-before-a-prompt ()
  "The turns since then are undone; edits of the user and of another agent stay."
  (qwen-companion-rewind-test--with
    (let (questions)
      (qwen-companion-test-answering (lambda (question) (push question questions) t)
        (qwen-companion-test-press "R"))
      (should (equal '("Rewind to before \"Prompt of two\"; undo 2 turns (change back a.txt, delete made.txt), your own edits stay; the conversation too? ")
                     questions)))
    (should (equal '("1\n2\n3\n4\nother\n6\n7\n8\nmine\n" nil "first\n")
                   (qwen-companion-rewind-test--files)))
    (should began)
    ;; If Emacs is killed on the way, the next start says so.
    (should (equal '(t) (mapcar (lambda (sent) (plist-get sent :begins))
                                (qwen-companion-test-sent 'journal-rewound))))
    (should (equal "Prompt of two" (qwen-companion-rewind-target-prompt (car doors))))
    (should (equal "conversation" (qwen-companion-rewind-target-session (car doors))))
    (qwen-companion-changes-test-settle)
    (should (string-match-p "Qwen Code +undone +Prompt of two" (qwen-companion-changes-test-text)))))

(ert-deftest qwen-companion-rewind-test-saying-no-changes-nothing ()
  (qwen-companion-rewind-test--with
    (let ((before (qwen-companion-rewind-test--files)))
      (qwen-companion-test-answering nil
        (should (qwen-companion-test-quits-p "R")))
      (should (equal before (qwen-companion-rewind-test--files)))
      (should-not began))))

(ert-deftest qwen-companion-rewind-test-only-the-files-or-only-the-conversation ()
  (qwen-companion-rewind-test--with
    (let ((before (qwen-companion-rewind-test--files)))
      (qwen-companion-test-answering t
        (let ((current-prefix-arg '(16)))
          (call-interactively #'qwen-companion-rewind-turn))
        (should began)
        (should (equal before (qwen-companion-rewind-test--files)))
        (setq began nil)
        (let ((current-prefix-arg '(4)))
          (call-interactively #'qwen-companion-rewind-turn)))
      (should-not began)
      (should-not (equal before (qwen-companion-rewind-test--files))))))

(ert-deftest qwen-companion-rewind-test-an-agent-that-still-works ()
  (qwen-companion-rewind-test--with
    (let ((before (qwen-companion-rewind-test--files)))
      (qwen-companion-changes-test-turn "four" '(("first.txt" "first\nand more\n")) :end nil)
      (qwen-companion-changes-test-settle)
      (qwen-companion-changes-test-goto "Prompt of two")
      (qwen-companion-test-answering t
        (qwen-companion-test-refused "still working" (qwen-companion-test-press "R")))
      (should (equal (butlast before) (butlast (qwen-companion-rewind-test--files))))
      (should-not began))))

(ert-deftest qwen-companion-rewind-test-a-conversation-that-cannot-be-rewound ()
  "It is said in the question, and the files go back all the same."
  (qwen-companion-rewind-test--with
    (setq qwen-companion-rewind-conversation-functions
          (list (lambda (_target) (list "the conversation stays: no door"))))
    (let (questions)
      (qwen-companion-test-answering (lambda (question) (push question questions) t)
        (qwen-companion-test-press "R"))
      (should (string-match-p "the conversation stays: no door\\? \\'" (car questions)))
      (should-not (file-exists-p "made.txt"))
      (qwen-companion-changes-test-settle)
      (qwen-companion-changes-test-goto "undone  Prompt of two")
      (let ((current-prefix-arg '(16)))
        (qwen-companion-test-refused "no door" (call-interactively #'qwen-companion-rewind-turn))))))

(ert-deftest qwen-companion-rewind-test-a-conflict-is-marked-once ()
  "A contradiction to the user's edit waits for the user; other files go back."
  (qwen-companion-rewind-test--with
    (qwen-companion-changes-test-write "a.txt" "1\nX\n3\n4\nother\n6\nY and mine\n8\n9\n")
    (qwen-companion-test-said "1 conflict with your edits, not written until .*: a.txt"
      (qwen-companion-test-answering t
        (qwen-companion-test-press "R")))
    (should (equal '("1\nX\n3\n4\nother\n6\nY and mine\n8\n9\n" nil "first\n")
                   (qwen-companion-rewind-test--files)))
    (should began)
    (with-current-buffer (find-buffer-visiting "a.txt")
      (should (string-match-p "<<<<<<<" (buffer-string))))))

(ert-deftest qwen-companion-rewind-test-going-back-to-the-conversation-as-it-was ()
  (qwen-companion-rewind-test--with
    (let* ((opened nil)
           (qwen-companion-rewind-return-functions (list (lambda (copy) (setq opened copy)))))
      (qwen-companion-changes-test-add
       (append '(:rewound t :copy "the copy") (qwen-companion-journal-turn "two")))
      (qwen-companion-changes-test-add
       (append '(:rewound t) (qwen-companion-journal-turn "three")))
      (qwen-companion-changes-test-settle)
      (should (string-match-p "rewound, files kept +Prompt of two" (qwen-companion-changes-test-text)))
      (qwen-companion-changes-test-goto "Prompt of two")
      (qwen-companion-test-answering t
        (qwen-companion-test-press "R"))
      (should (equal "the copy" opened))
      (qwen-companion-changes-test-goto "Prompt of three")
      (qwen-companion-test-refused "No copy" (qwen-companion-test-press "R"))
      ;; A turn before them leaves those alone that were rewound already.
      (qwen-companion-changes-test-goto "Prompt of one")
      (qwen-companion-test-answering t
        (qwen-companion-test-press "R"))
      (should (equal '("made\nmore\n" nil)
                     (mapcar #'qwen-companion-changes-test-bytes '("made.txt" "first.txt")))))))

(ert-deftest qwen-companion-rewind-test-going-back-before-the-journal-knows-the-copy ()
  "The journal may hear of a rewind before it is over here, and of the copy after that."
  (qwen-companion-rewind-test--with
    (let* ((opened nil)
           (qwen-companion-rewind-return-functions (list (lambda (copy) (setq opened copy)))))
      (qwen-companion-test-answering t
        (let ((current-prefix-arg '(16)))
          (call-interactively #'qwen-companion-rewind-turn))
        (dolist (turn '("two" "three"))
          (qwen-companion-changes-test-add
           (append '(:rewound t) (qwen-companion-journal-turn turn))))
        (qwen-companion-changes-test-settle)
        (qwen-companion-changes-test-goto "Prompt of three")
        (qwen-companion-test-refused "The copy of the conversation is not ready yet; try again"
          (qwen-companion-test-press "R"))
        (qwen-companion-rewind-note (car doors) "the copy")
        (qwen-companion-test-press "R")
        (should (equal "the copy" opened))
        ;; None can be made by some versions, or the rewind failed after all.
        (dolist (over (list (lambda () (qwen-companion-rewind-note (car doors) nil))
                            (lambda () (qwen-companion-rewind-failed (car doors) "The daemon has gone."))))
          (qwen-companion-rewind-note (car doors) nil t)
          (funcall over)
          (qwen-companion-test-refused "No copy of the conversation was kept"
            (qwen-companion-test-press "R")))))))

(ert-deftest qwen-companion-rewind-test-cli-that-cannot-be-rewound ()
  "The reason is said before anything is changed."
  (qwen-companion-rewind-test--with
    (setq qwen-companion-rewind-conversation-functions nil)
    (let* ((state (list :activity 'idle :conversation "conversation"))
           (session (list :id "one" :family 'qwen :version "0.24.4" :state state))
           (terminal nil)
           question)
      (cl-letf (((symbol-function 'qwen-companion-backend-sessions) (lambda () (list session)))
                ((symbol-function 'qwen-companion-terminal-session-buffer) (lambda (_) terminal)))
        (cl-flet ((asked ()
                    (qwen-companion-test-answering (lambda (text) (setq question text) nil)
                      (condition-case err
                          (qwen-companion-test-press "R")
                        (quit question)
                        (user-error (cadr err))))))
          (should (string-match-p "not in a terminal of M-x qwen-companion-run" (asked)))
          (with-temp-buffer
            (setq terminal (current-buffer))
            (insert "> Type your message\n")
            (setq-local qwen-companion-terminal-directory "/project")
            (with-current-buffer (qwen-companion-changes-items-buffer)
              (should (string-match-p "restarting the CLI in .*\\?" (asked)))
              (setq session (plist-put (copy-sequence session) :version "0.21.2"))
              (should (string-match-p "Qwen Code 0.21.10 or later is needed" (asked)))
              (setq session (plist-put (copy-sequence session) :version "0.24.4"))
              (plist-put state :activity 'working)
              (should (string-match-p "is working; cancel its turn there" (asked)))
              (plist-put state :activity 'idle)
              (with-current-buffer terminal
                (erase-buffer)
                (insert "> half typed"))
              (should (string-match-p "Unsent input in" (asked)))
              (plist-put state :conversation "another one, after /clear")
              (should (string-match-p "no connected CLI has it open" (asked))))))))
    (should (file-exists-p "made.txt"))))

(ert-deftest qwen-companion-rewind-test-a-process-that-ends-meanwhile ()
  "It is said, and that the conversation may be tried again."
  (qwen-companion-rewind-test--with
    (qwen-companion-test-said "Rewinding the conversation failed: The companion's process is not"
      (let* ((qwen-companion-qwen-command '("true"))
             (target (qwen-companion-rewind-target-at-point))
             (answered nil))
        (qwen-companion-rewind-cli-ask
         "Rewinding" "/project" "cli" target
         (lambda (answer)
           (qwen-companion-rewind-failed target (qwen-companion-recorded-rewound-error answer))
           (setq answered t)))
        (qwen-companion-backend-fail-requests)
        (qwen-companion-test-wait-for answered)))))

;;; Killed on the way

(ert-deftest qwen-companion-rewind-test-goes-on-where-it-was-killed ()
  "The same key does the rest, be it files or the conversation alone."
  (qwen-companion-rewind-test--with
    (let ((back '("1\n2\n3\n4\nother\n6\n7\n8\n9\n" nil "first\n"))
          (alive (list (lambda (_target) (cons "the conversation too" (lambda () (setq began t))))))
          (questions nil))
      (qwen-companion-changes-test-write "a.txt" "1\nX\n3\n4\nother\n6\nY\n8\n9\n")
      ;; After the files of the first turn.
      (qwen-companion-changes-test-goto "Prompt of three")
      (qwen-companion-test-answering t
        (qwen-companion-test-press "k"))
      (qwen-companion-changes-test-settle)
      (cl-flet ((rewind (&optional prefix)
                  (qwen-companion-changes-test-goto "  Prompt of two")
                  (qwen-companion-test-answering (lambda (question) (push question questions) t)
                    (let ((current-prefix-arg prefix))
                      (condition-case nil
                          (call-interactively #'qwen-companion-rewind-turn)
                        (quit 'quit))))
                  (qwen-companion-changes-test-settle)))
        ;; After all files.
        (setq qwen-companion-rewind-conversation-functions
              (list (lambda (_target) (cons "the conversation too" (lambda () (signal 'quit nil))))))
        (rewind)
        (should (string-match-p "; undo 1 turn (change back a.txt, delete made.txt), your own" (car questions)))
        (should (equal back (qwen-companion-rewind-test--files)))
        (should-not began)
        (setq qwen-companion-rewind-conversation-functions alive)
        (rewind '(16))
        (should (string-match-p "two\"; the files stay; the conversation too" (car questions)))
        (setq began nil)
        (rewind)
        (should (string-match-p "two\"; no file has changes to undo; the conversation too" (car questions)))
        (should began)
        (should (equal back (qwen-companion-rewind-test--files)))))))

;;; What a CLI's own rewind took

(ert-deftest qwen-companion-rewind-test-recovers-what-the-clis-own-rewind-took ()
  (qwen-companion-rewind-test--with
    (let ((mine "1\n2\n3\n4\nother\n6\n7\n8\nmine\n"))
      (qwen-companion-changes-test-write "a.txt" mine)
      (qwen-companion-test-said "No CLI overwrote your edits" (qwen-companion-recover))
      (qwen-companion-changes-test-turn
       "took" (list (list "a.txt" qwen-companion-rewind-test--old)) :source 'rewind)
      (qwen-companion-changes-test-write "a.txt" (concat "0\n" qwen-companion-rewind-test--old))
      (qwen-companion-test-said "Qwen Code's rewind removed 2 of your lines from a.txt; C-c C-u restores them"
        (qwen-companion-recover-on-took (qwen-companion-journal-turn "took")))
      (qwen-companion-test-said "overwrote your edits in a.txt"
        (qwen-companion-recover-on-took (append '(:notes ("yours touch them")) (qwen-companion-journal-turn "took"))))
      (qwen-companion-changes-test-settle)
      (goto-char (point-min))
      (qwen-companion-test-said "Brought back" (qwen-companion-test-press "C-c C-u"))
      (should (equal (concat "0\n" mine) (qwen-companion-changes-test-bytes "a.txt")))
      ;; It is no turn to before which anything could be rewound.
      (qwen-companion-changes-test-goto "Prompt of took")
      (qwen-companion-test-refused "Only a turn of Qwen Code" (qwen-companion-test-press "R")))))

(provide 'qwen-companion-rewind-test)
;;; qwen-companion-rewind-test.el ends here
