;;; qwen-companion-layer-test.el --- Tests of the settings layer  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; What is told to the Python process for the settings layer, and what the
;; CLIs report through it in words.

;;; Code:

(require 'ert)
(require 'cl-lib)
(require 'qwen-companion)
(require 'qwen-companion-test-helper)

(defun qwen-companion-layer-test--session (&rest state)
  "Return a session with STATE."
  (list :id "i" :client "Qwen Code" :version "0.24.4" :state state))

(ert-deftest qwen-companion-layer-test-options-are-told ()
  (let ((qwen-companion-settings-layer t)
        (qwen-companion-review-edits 'open))
    (let ((payload (qwen-companion-privacy--payload)))
      (should (eq t (plist-get payload :settings-layer)))
      (should (eq 'open (plist-get payload :review-edits)))))
  ;; A change is told, not only the first value.
  (let ((qwen-companion-privacy--sent nil)
        (qwen-companion-review-edits 'all)
        calls)
    (cl-letf (((symbol-function 'qwen-companion-backend-call)
               (lambda (_method payload) (push (plist-get payload :review-edits) calls))))
      (qwen-companion-privacy-update)
      (qwen-companion-privacy-update)
      (setq qwen-companion-review-edits nil)
      (qwen-companion-privacy-update)
      (setq qwen-companion-settings-layer (not qwen-companion-settings-layer))
      (unwind-protect
          (qwen-companion-privacy-update)
        (setq qwen-companion-settings-layer (not qwen-companion-settings-layer)))
      (should (equal '(all nil nil) (nreverse calls))))))

;; A question matters more than work.
(ert-deftest qwen-companion-layer-test-activity-in-the-mode-line ()
  (let ((qwen-companion-backend--state 'ready)
        (working (qwen-companion-layer-test--session :activity 'working))
        (asking (qwen-companion-layer-test--session :activity 'asking))
        (idle (qwen-companion-layer-test--session :activity 'idle)))
    (pcase-dolist (`(,sessions ,expected)
                   `(((,idle) " Qwen[1]") ((,working) " Qwen[1] working")
                     ((,working ,asking) " Qwen[2] asks")))
      (qwen-companion-test-with-sessions sessions
        (should (equal expected (substring-no-properties (qwen-companion-test-lighter))))))))

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

(ert-deftest qwen-companion-layer-test-modes-in-which-nothing-is-reviewed ()
  (dolist (mode '("yolo" "auto-edit"))
    (qwen-companion-test-with-sessions
        (list (qwen-companion-layer-test--session :mode mode)
              (qwen-companion-layer-test--session :mode mode))
      (should (equal mode (qwen-companion-layer-unreviewed-mode))))
    (qwen-companion-test-with-sessions
        (list (qwen-companion-layer-test--session :mode "auto")
              (qwen-companion-layer-test--session :mode mode))
      ;; Not of the one that is reviewed.
      (cl-letf (((symbol-function 'qwen-companion-state) (lambda () 'ready)))
        (should (string-search (format " no reviews: %s (1 of 2)" mode)
                               (qwen-companion-test-lighter))))
      (let ((qwen-companion-review-edits nil))
        (should-not (qwen-companion-layer-unreviewed-mode)))))
  (dolist (mode '("auto" "default" "plan" "something %b new" nil))
    (qwen-companion-test-with-sessions
        (list (qwen-companion-layer-test--session :mode mode) '(:id "j"))
      (should-not (qwen-companion-layer-unreviewed-mode)))))

(ert-deftest qwen-companion-layer-test-states-in-words ()
  (should-not (qwen-companion-layer-describe '(:id "i") 100.0))
  (should (equal "working for 1 min, \"change it\", mode auto, model m, 2 subagents"
                 (qwen-companion-layer-describe
                  (qwen-companion-layer-test--session
                   :activity 'working :since 20000 :prompt "change it"
                   :mode "auto" :model "m" :subagents 2)
                  100.0)))
  (should (equal "asking for 9 s, \"may I?\", \"change it\""
                 (qwen-companion-layer-describe
                  (qwen-companion-layer-test--session
                   :activity 'asking :since 91000 :question "may I?"
                   :prompt "change it" :subagents 0)
                  100.0)))
  (should (equal "idle for 2 h, 31% of the context used, 314 tokens, 1 subagent"
                 (qwen-companion-layer-describe
                  (qwen-companion-layer-test--session
                   :activity 'idle :since 0 :tokens 314 :context 31 :subagents 1)
                  7200.0)))
  ;; The clock was set back.
  (should (equal "cancelled for 0 s"
                 (qwen-companion-layer-describe
                  (qwen-companion-layer-test--session :activity 'cancelled :since 200000)
                  100.0)))
  (should (equal "calls no hooks: disableAllHooks in ~/x"
                 (qwen-companion-layer-describe
                  '(:id "i" :no-hooks "disableAllHooks in ~/x") 100.0)))
  ;; What others have written does nothing.
  (let ((text (qwen-companion-layer-describe
               (qwen-companion-layer-test--session
                :activity 'working :prompt "a\u202Eb\nc" :mode "x\ny")
               100.0)))
    (should-not (string-search "\u202E" text))
    (should-not (string-search "\n" text))))

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
    (cl-letf* (((symbol-function 'qwen-companion-state) (lambda () 'ready))
               (described 0)
               (describe (symbol-function 'qwen-companion-layer-describe))
               ((symbol-function 'qwen-companion-layer-describe)
                (lambda (&rest arguments)
                  (cl-incf described)
                  (apply describe arguments)))
               (text (qwen-companion-test-lighter)))
      (should (string-prefix-p " Qwen[3]" text))
      (should (= 0 described))
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
  (let ((held (qwen-companion-proposal--make :id "hook-1" :session "i" :path "/a" :held t))
        (other (qwen-companion-proposal--make :id "1" :session "i" :path "/a"))
        ended)
    (cl-letf (((symbol-function 'qwen-companion-proposal--end)
               (lambda (proposal &rest _) (push (qwen-companion-proposal-id proposal) ended)))
              ((symbol-function 'qwen-companion-proposal--rescue-or-kill) #'ignore))
      (let ((qwen-companion-proposal--open (list held)))
        (qwen-companion-proposal--supersede other)
        (should-not ended))
      (let ((qwen-companion-proposal--open (list held other)))
        (qwen-companion-proposal--supersede other)
        (should (equal '("1") ended))))))

(provide 'qwen-companion-layer-test)
;;; qwen-companion-layer-test.el ends here
