;;; qwen-companion-layer-test.el --- Tests of the settings layer  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; What is told to the Python process for the settings layer, and what the
;; CLIs report through it in words.

;;; Code:

(require 'qwen-companion-test-helper)

(defun qwen-companion-layer-test--session (&rest state)
  "Return a session with STATE."
  (list :id "i" :client "Qwen Code" :version "0.24.4" :state state))

;; A question matters more than work.
(ert-deftest qwen-companion-layer-test-activity-in-the-mode-line ()
  (let ((working (qwen-companion-layer-test--session :activity 'working))
        (asking (qwen-companion-layer-test--session :activity 'asking))
        (idle (qwen-companion-layer-test--session :activity 'idle)))
    (pcase-dolist (`(,sessions ,expected)
                   `(((,idle) " Qwen[1]") ((,working) " Qwen[1] working")
                     ((,working ,asking) " Qwen[2] asks")))
      (qwen-companion-test-with-state 'ready
        (qwen-companion-test-with-sessions sessions
          (should (equal expected (substring-no-properties (qwen-companion-test-lighter)))))))))

(ert-deftest qwen-companion-layer-test-to-dos ()
  "The help of the mode line lists them; elsewhere it is how many are done."
  (let ((session (qwen-companion-layer-test--session
                  :activity 'working
                  :todos '((:text "read" :status done) (:text "wri\u202ete" :status working)
                           (:text "test" :status pending)))))
    (qwen-companion-test-with-sessions (list session)
      (should (equal "1/3" (qwen-companion-layer-todo-count session)))
      (should (equal "Qwen Code: working, 1/3 to-dos done\n  [x] read\n  [-] wri\\u202Ete\n  [ ] test"
                     (qwen-companion-layer-help)))
      (should (equal "Qwen Code: working, 1/3 to-dos done" (qwen-companion-layer-lines))))
    (should-not (qwen-companion-layer-todo-count (qwen-companion-layer-test--session)))))

(ert-deftest qwen-companion-layer-test-visited-files ()
  (let* ((file (make-temp-file "qwen-companion-layer-"))
         (link (concat file "-link"))
         (buffer (find-file-noselect file)))
    (unwind-protect
        (progn
          (make-symbolic-link file link)
          (should (eq t (qwen-companion-layer-on-file-visited (list :path file))))
          (should (eq t (qwen-companion-layer-on-file-visited (list :path link))))
          (should-not (qwen-companion-layer-on-file-visited (list :path (concat file "-other"))))
          (should-not (qwen-companion-layer-on-file-visited (list :path "/ssh:nowhere:/x")))
          (kill-buffer buffer)
          (should-not (qwen-companion-layer-on-file-visited (list :path file))))
      (when (buffer-live-p buffer)
        (kill-buffer buffer))
      (delete-file link)
      (delete-file file))))

(ert-deftest qwen-companion-layer-test-where-edits-are-not-reviewed ()
  "The mode line names the CLIs, and its help says why."
  (dolist (mode '("yolo" "auto-edit"))
    (qwen-companion-test-with-sessions
        (list (qwen-companion-layer-test--session :mode mode)
              (qwen-companion-layer-test--session :mode mode))
      (should (equal (concat " edits not reviewed: " mode) (qwen-companion-layer-lighter))))
    (qwen-companion-test-with-sessions
        (list (qwen-companion-layer-test--session :mode "auto")
              (qwen-companion-layer-test--session :mode mode))
      ;; Not of the one that is reviewed.
      (qwen-companion-test-with-state 'ready
        (should (string-search (format " edits not reviewed: %s (1 of 2)" mode)
                               (qwen-companion-test-lighter))))
      (dolist (option '(nil all-modes))
        (let ((qwen-companion-review-edits option))
          (should-not (qwen-companion-layer-lighter))))))
  (dolist (mode '("auto" "default" "plan" "something %b new" nil))
    (qwen-companion-test-with-sessions
        (list (qwen-companion-layer-test--session :mode mode) '(:id "j"))
      (should-not (qwen-companion-layer-lighter))
      (let ((qwen-companion-layer--guarded nil))
        (should (equal " no curl" (qwen-companion-layer-lighter))))))
  (qwen-companion-test-with-sessions
      '((:id "j" :client "Qwen Code" :no-hooks "disableAllHooks in x"))
    (let ((qwen-companion-review-edits 'all-modes))
      (should (equal " edits not reviewed: no hooks" (qwen-companion-layer-lighter))))
    (should (string-search "it calls no hooks, disableAllHooks in x"
                           (qwen-companion-layer--unreviewed-help)))))

(ert-deftest qwen-companion-layer-test-states-in-words ()
  (pcase-dolist (`(,expected ,now . ,state)
                 '(("working for 1 min, \"change it\", mode auto, model m, 2 subagents" 100.0
                    :activity working :since 20000 :prompt "change it"
                    :mode "auto" :model "m" :subagents 2)
                   ("asking for 9 s, \"may I?\", \"change it\"" 100.0
                    :activity asking :since 91000 :question "may I?" :prompt "change it" :subagents 0)
                   ("idle for 2 h, 31% of the context used, 314 tokens, 1 subagent" 7200.0
                    :activity idle :since 0 :tokens 314 :context 31 :subagents 1)
                   ;; The clock was set back.
                   ("cancelled for 0 s" 100.0 :activity cancelled :since 200000)))
    (should (equal expected (qwen-companion-layer-describe (apply #'qwen-companion-layer-test--session state) now))))
  (should-not (qwen-companion-layer-describe '(:id "i") 100.0))
  (should (equal "calls no hooks: disableAllHooks in ~/x"
                 (qwen-companion-layer-describe '(:id "i" :no-hooks "disableAllHooks in ~/x") 100.0)))
  ;; What others have written does nothing.
  (should-not (string-match-p "[\u202E\n]"
                              (qwen-companion-layer-describe
                               (qwen-companion-layer-test--session :activity 'working :prompt "a\u202Eb\nc" :mode "x\ny")
                               100.0))))

(ert-deftest qwen-companion-layer-test-help-has-a-line-for-each ()
  (qwen-companion-test-with-sessions nil
    (should-not (qwen-companion-layer-help)))
  (qwen-companion-test-with-sessions
      (list (qwen-companion-layer-test--session :activity 'idle)
            '(:id "j" :client "Gemini CLI")
            (qwen-companion-layer-test--session :mode "plan"))
    (should (equal "Qwen Code: idle\nQwen Code: mode plan" (qwen-companion-layer-help)))
    ;; The mode line is made after each command, and this costs more with
    ;; each CLI: it is for the mouse only.
    (let ((text (qwen-companion-test-with-state 'ready (qwen-companion-test-lighter))))
      (should (string-prefix-p " Qwen[3]" text))
      (should (equal "Qwen Code: idle\nQwen Code: mode plan"
                     (funcall (get-text-property 0 'help-echo text) nil nil 1))))))

(ert-deftest qwen-companion-layer-test-the-process-has-the-environment-before ()
  "The Python process is to know the file that the user had named."
  (let ((qwen-companion-terminal--saved nil)
        (environment (default-value 'process-environment)))
    (unwind-protect
        (progn
          (setq-default process-environment (append '("QC_TEST_OLD=theirs") environment))
          (qwen-companion-terminal-set-environment '(("QC_TEST_OLD" "ours") ("QC_TEST_NEW" "ours")))
          (let ((process-environment
                 (append (qwen-companion-terminal-environment-before)
                         (default-value 'process-environment))))
            (should (equal "theirs" (getenv "QC_TEST_OLD")))
            (should-not (getenv "QC_TEST_NEW")))
          (should (equal "ours" (qwen-companion-terminal--getenv "QC_TEST_OLD"))))
      (qwen-companion-terminal-restore-environment)
      (setq-default process-environment environment))))

(ert-deftest qwen-companion-layer-test-held-requests-do-not-supersede ()
  "A subagent's review of a file and its CLI's of the same are two."
  (qwen-companion-test-with-proposals '(("a.txt" "one\n"))
    (let ((held (qwen-companion-test-propose "a.txt" "two\n" :held t))
          (other (qwen-companion-test-propose "a.txt" "three\n")))
      (should (equal (list held other) (qwen-companion-proposals)))
      (should (equal (list held (qwen-companion-test-propose "a.txt" "four\n")) (qwen-companion-proposals))))))

(provide 'qwen-companion-layer-test)
;;; qwen-companion-layer-test.el ends here
