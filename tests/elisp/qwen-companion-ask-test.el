;;; qwen-companion-ask-test.el --- Tests of prompts from anywhere  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; What is quoted where, to which terminal it goes, and that no prompt is lost.

;;; Code:

(require 'compile)
(require 'diff-mode)
(require 'dired)
(require 'flymake)
(require 'eieio)
(require 'qwen-companion-ask)
(require 'qwen-companion-test-helper)

(defmacro qwen-companion-ask-test--with (&rest body)
  "Run BODY in a project with a.py and b c.txt, without CLIs and prompts."
  (declare (indent 0) (debug t))
  `(qwen-companion-test-with-files '(("a.py" "import os\n\ndef f():\n    return 1\n")
                                     ("b c.txt" "one\n"))
     (let ((qwen-companion-prompts-history nil)
           (root (directory-file-name default-directory)))
       (ignore root)
       (save-window-excursion
         ,@body))))

(defun qwen-companion-ask-test--prompt ()
  "Return the text of the prompt that is open."
  (should qwen-companion-ask-mode)
  (buffer-substring-no-properties (point-min) (point-max)))

(defun qwen-companion-ask-test--quotes (text)
  "Check that the prompt in the selected window is TEXT, and empty it."
  (set-buffer (window-buffer))
  (should (equal text (qwen-companion-ask-test--prompt)))
  (erase-buffer))

(defmacro qwen-companion-ask-test--with-terminals (names &rest body)
  "Run BODY with a CLI in a terminal buffer for each of NAMES.
The function `typed' returns what a terminal has got."
  (declare (indent 1) (debug t))
  `(let ((typed nil)
         (sessions (mapcar (lambda (name)
                             (list :id name :client "Qwen Code" :directory root))
                           ,names)))
     (cl-letf (((symbol-function 'qwen-companion-backend-sessions)
                (lambda () sessions))
               ((symbol-function 'qwen-companion-terminal-session-buffer)
                (lambda (session)
                  (get-buffer-create (format "*%s*" (qwen-companion-session-id session)))))
               ((symbol-function 'qwen-companion-terminal-send-prompt)
                (lambda (buffer prompt)
                  (push (list (buffer-name buffer) prompt) typed))))
       ,@body)))

(ert-deftest qwen-companion-ask-test-clis-at-a-place-without-a-terminal-are-told-apart ()
  (cl-letf (((symbol-function 'completing-read)
             (lambda (_prompt table &rest _) (car (last (all-completions "" table))))))
    (should (equal "b" (qwen-companion-session-id
                        (qwen-companion-ask--read
                         '((:id "a" :client "Qwen Code" :place "/ssh:far:" :ancestors (7))
                           (:id "b" :client "Qwen Code" :place "/ssh:far:" :ancestors (8)))))))))

(defun qwen-companion-ask-test--exit ()
  "Save the drafts as at the end of Emacs."
  (should (memq #'qwen-companion-ask--save-drafts kill-emacs-hook))
  (qwen-companion-ask--save-drafts))

(ert-deftest qwen-companion-ask-test-starts-several-in-new-worktrees ()
  "Each CLI that was chosen gets the prompt when it is ready, with its model."
  (qwen-companion-ask-test--with
    (let ((qwen-companion-ask-clis '(("other" "sh" "-c") ("missing" "no-such-program")))
          (qwen-companion-qwen-command '("sh"))
          (qwen-companion-terminal-clis nil)
          (choices '("qwen" "qwen:a:b" "other:coder"))
          offered started)
      (cl-letf (((symbol-function 'qwen-companion-state) (lambda () 'ready))
                ((symbol-function 'qwen-companion-terminal-in-worktrees)
                 (lambda (_root names start)
                   (mapc start names)
                   ", without uncommitted changes (1 file)"))
                ((symbol-function 'completing-read-multiple)
                 (lambda (_prompt table &rest _) (setq offered table) choices))
                ((symbol-function 'qwen-companion-terminal-open)
                 (lambda (tree arguments)
                   (let ((buffer (generate-new-buffer "one")))
                     (push (list tree arguments buffer) started)
                     (with-current-buffer buffer
                       (setq qwen-companion-terminal-directory tree
                             qwen-companion-terminal-arguments arguments)
                       (run-hooks 'qwen-companion-terminal-opened-hook))))))
        (qwen-companion-ask t)
        (insert "Add a test, please: now\n")
        (should (string-match-p "Starting in 3 worktrees, without uncommitted changes (1 file); "
                                (qwen-companion-test-messages (qwen-companion-ask-submit '(4)))))
        (setq started (reverse started))
        (should (equal '("qwen" "other") offered))
        (should (equal '(nil ("--model" "a:b") ("--model" "coder")) (mapcar #'cadr started)))
        (should (cl-every (lambda (cli)
                            (string-match-p "\\`add-a-test-please-[-0-9]+-[123]\\'" (car cli)))
                          started))
        (should (equal (list (cons (car (nth 2 started)) '("sh" "-c")))
                       qwen-companion-terminal-clis))
        (pcase-dolist (`(,tree ,_ ,buffer) started)
          (should (equal (list (list buffer tree "Add a test, please: now"))
                         (qwen-companion-prompts-waiting buffer)))
          (kill-buffer buffer))
        ;; What is not known starts nothing, and the prompt stays.
        (setq started nil)
        (dolist (wrong '(("qwen" "missing") nil))
          (setq choices wrong)
          (qwen-companion-ask t)
          (insert "Again")
          (should-error (qwen-companion-ask-submit '(4)) :type 'user-error)
          (qwen-companion-ask-test--quotes "Again"))
        (should-not started)))))

(ert-deftest qwen-companion-ask-test-quotes-what-is-at-point ()
  (qwen-companion-ask-test--with
    (find-file "a.py")
    (goto-char (point-max))
    (forward-line -1)
    (qwen-companion-ask)
    (should (equal "a.py, line 4, in f\n" (qwen-companion-ask-test--prompt)))
    ;; A prompt that was begun goes on.
    (quit-window)
    (transient-mark-mode 1)
    (switch-to-buffer "a.py")
    (goto-char (point-min))
    (forward-line 2)
    (push-mark (point-max) t t)
    (qwen-companion-ask)
    (qwen-companion-ask-test--quotes "a.py, line 4, in f\na.py, lines 3-4:\n```python\ndef f():\n    return 1\n```\n")
    (switch-to-buffer "a.py")
    (qwen-companion-ask t)
    (should (equal "" (qwen-companion-ask-test--prompt)))))

(ert-deftest qwen-companion-ask-test-quotes-diagnostics ()
  (qwen-companion-ask-test--with
    (find-file "a.py")
    (setq-local flymake-diagnostic-functions
                (list (lambda (report &rest _)
                        (funcall report
                                 (list (flymake-make-diagnostic
                                        (current-buffer) 1 3 :warning "`os'\nunused"))))))
    (flymake-mode 1)
    (flymake-start)
    (unwind-protect (qwen-companion-ask)
      (with-current-buffer "a.py" (flymake-mode -1)))
    (should (equal "a.py:1:1: warning: `os' unused\n" (qwen-companion-ask-test--prompt)))))

(ert-deftest qwen-companion-ask-test-quotes-dired-diff-and-compilation ()
  (qwen-companion-ask-test--with
    (dired default-directory)
    (dired-mark-files-regexp "a\\.py\\|b c")
    (qwen-companion-ask)
    (qwen-companion-ask-test--quotes "@a.py @b\\ c.txt\n")
    (let ((default-directory (file-name-as-directory root)))
      (with-temp-buffer
        (insert "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+new\n")
        (diff-mode)
        (qwen-companion-test-go-to "+new")
        (qwen-companion-ask))
      (should (string-match-p "```\n@@ -1 \\+1 @@\n-old\n\\+new\n```"
                              (qwen-companion-ask-test--prompt)))
      (erase-buffer)
      (with-temp-buffer
        (insert "a.py:3: error: bad\n  detail\na.py:9: error: worse\n")
        (compilation-mode)
        (let ((inhibit-read-only t))
          (font-lock-ensure)
          (compilation--ensure-parse (point-max)))
        (goto-char (point-min))
        (qwen-companion-ask))
      (should (string-match-p "a\\.py:3: error: bad\n  detail\n```"
                              (qwen-companion-ask-test--prompt))))))

(defclass qwen-companion-ask-test-section ()
  ((type :initarg :type) (value :initarg :value) (parent :initarg :parent)
   (start :initarg :start) (end :initarg :end))
  "The slots of Magit's sections that are read.")

(ert-deftest qwen-companion-ask-test-quotes-a-section-of-magit ()
  "A file is mentioned, a hunk quoted with its file, all else quoted."
  (qwen-companion-ask-test--with
    (let (section (default-directory (file-name-as-directory root)))
      (cl-letf (((symbol-function 'magit-current-section) (lambda () section)))
        (cl-flet ((ask-at (type value text &optional parent)
                    (with-temp-buffer
                      (insert "Head: main\n" text "the rest\n")
                      (setq major-mode 'magit-section-mode
                            section (qwen-companion-ask-test-section
                                     :type type :value value :parent parent
                                     :start 12 :end (+ 12 (length text))))
                      (qwen-companion-ask))
                    (set-buffer (window-buffer))
                    (prog1 (qwen-companion-ask-test--prompt)
                      (erase-buffer))))
          (should (equal "@b\\ c.txt\n" (ask-at 'file "b c.txt" "modified b c.txt\n")))
          (let ((file section))
            (should (equal "This change of b\\ c.txt:\n```\n@@ -1 +1 @@\n-one\n+two\n```\n"
                           (ask-at 'hunk nil "@@ -1 +1 @@\n-one\n+two\n" file))))
          (should (equal "This part of Magit:\n```\n1234567 Mend it\n```\n"
                         (ask-at 'commit "1234567" "1234567 Mend it\n"))))))))

(ert-deftest qwen-companion-ask-test-quotes-results-of-tests ()
  "Failures of ERT are quoted, and errors in a shell that recognises errors."
  (qwen-companion-ask-test--with
    (with-temp-buffer
      (insert "F one-test\n    (ert-test-failed)\n")
      (setq major-mode 'ert-results-mode)
      (qwen-companion-ask))
    (qwen-companion-ask-test--quotes "This test run:\n```\nF one-test\n    (ert-test-failed)\n```\n")
    (with-temp-buffer
      (insert "$ make\na.py:3: error: bad\n$ ")
      (compilation-shell-minor-mode 1)
      (font-lock-ensure)
      (compilation--ensure-parse (point-max))
      (goto-char (point-min))
      (forward-line 1)
      (qwen-companion-ask))
    (qwen-companion-ask-test--quotes "This message:\n```\na.py:3: error: bad\n$ \n```\n")))

(ert-deftest qwen-companion-ask-test-quotes-errors-of-flycheck ()
  (qwen-companion-ask-test--with
    (find-file "a.py")
    (cl-letf (((symbol-function 'flycheck-error-line) (lambda (_) 1))
              ((symbol-function 'flycheck-error-column) (lambda (_) 8))
              ((symbol-function 'flycheck-error-filename) #'ignore)
              ((symbol-function 'flycheck-error-level) (lambda (_) 'error))
              ((symbol-function 'flycheck-error-checker) (lambda (_) 'pylint))
              ((symbol-function 'flycheck-error-message) (lambda (_) "unused import")))
      (setq-local flycheck-mode t flycheck-current-errors '(one))
      (qwen-companion-ask)
      (should (equal "a.py:1:8: error: unused import (pylint)\n"
                     (qwen-companion-ask-test--prompt))))))

(ert-deftest qwen-companion-ask-test-quotes-a-whole-compilation ()
  "On no message; of a long one, the whole lines at its end."
  (qwen-companion-ask-test--with
    (with-temp-buffer
      (insert "make\na.py:3: error: bad\nexited abnormally\n")
      (compilation-mode)
      (goto-char (point-max))
      (qwen-companion-ask))
    (qwen-companion-ask-test--quotes "This compilation:\n```\nmake\na.py:3: error: bad\nexited abnormally\n```\n")
    (with-temp-buffer
      (dotimes (number 2000)
        (insert (format "line %d\n" number)))
      (compilation-mode)
      (goto-char (point-max))
      (qwen-companion-ask))
    (set-buffer (window-buffer))
    (let ((prompt (qwen-companion-ask-test--prompt)))
      (should (string-match-p "\\`The end of this compilation:\n```\nline [0-9]+\n" prompt))
      (should (string-match-p "\nline 1999\n```\n\\'" prompt))
      (should (< 7900 (length prompt) 8100)))))

(ert-deftest qwen-companion-ask-test-sends-and-remembers ()
  (qwen-companion-ask-test--with
    (qwen-companion-ask-test--with-terminals '("one")
      (find-file "a.py")
      (qwen-companion-ask)
      (qwen-companion-test-append "Why?\n")
      (qwen-companion-ask-submit)
      (should (equal '(("*one*" "a.py, line 1\nWhy?")) typed))
      (should (equal "a.py" (buffer-name (window-buffer (selected-window)))))
      (qwen-companion-ask t)
      (should (equal "" (qwen-companion-ask-test--prompt)))
      (should-error (qwen-companion-ask-submit) :type 'user-error)
      (insert "draft")
      (qwen-companion-ask-previous)
      (should (equal "a.py, line 1\nWhy?" (qwen-companion-ask-test--prompt)))
      (should-error (qwen-companion-ask-previous) :type 'user-error)
      (qwen-companion-ask-next)
      (should (equal "draft" (qwen-companion-ask-test--prompt)))
      (with-current-buffer "a.py" (qwen-companion-ask-send "And now?"))
      (should (equal '("*one*" "a.py, line 1\nAnd now?") (car typed)))
      (should (equal "And now?" (cadr (assoc root qwen-companion-prompts-history)))))))

(ert-deftest qwen-companion-ask-test-chooses-a-cli ()
  "The one that works here; with several, the user chooses."
  (qwen-companion-ask-test--with
    (qwen-companion-ask-test--with-terminals '("one" "two")
      (find-file "a.py")
      (plist-put (car sessions) :directory "/")
      (qwen-companion-ask-send "Hello")
      (should (equal "*two*" (caar typed)))
      (plist-put (car sessions) :directory root)
      (plist-put (car sessions) :state (list :activity 'idle :since (* 1000 (float-time))))
      (let (offered)
        (qwen-companion-test-choosing
            (lambda (_prompt table &rest _)
              (setq offered (qwen-companion-test-candidates table))
              "*one*")
          (qwen-companion-ask-send "Hello")
          (should (eq 'buffer (pop offered)))
          (should (equal '("*one*" "*two*") (mapcar #'car offered)))
          (should (string-match-p "\\`  idle for [0-9]+ s\\'" (cdar offered)))
          (should (equal "*one*" (caar typed))))))))

(ert-deftest qwen-companion-ask-test-nothing-is-lost ()
  "Without a CLI the prompt stays; killed, or when Emacs ends, it is in the history."
  (qwen-companion-ask-test--with
    (find-file "a.py")
    (qwen-companion-ask t)
    (insert "Long thoughts")
    (qwen-companion-ask-test--with-terminals '()
      (should-error (qwen-companion-ask-submit) :type 'user-error)
      (should (equal "Long thoughts" (qwen-companion-ask-test--prompt))))
    (kill-buffer)
    (find-file "a.py")
    (qwen-companion-ask t)
    (qwen-companion-ask-previous)
    (qwen-companion-ask-test--quotes "Long thoughts")
    (insert "Last words")
    (qwen-companion-ask-test--exit)
    (should (equal '("Last words" "Long thoughts") (qwen-companion-prompts-of root)))))

(ert-deftest qwen-companion-ask-test-an-edited-prompt-of-the-history-stays ()
  "To go on in the history loses no edit, and neither does sending another."
  (qwen-companion-ask-test--with
    (qwen-companion-ask-test--with-terminals '("one")
      (dolist (prompt '("First" "Second"))
        (qwen-companion-prompts-remember root prompt))
      (find-file "a.py")
      (qwen-companion-ask t)
      (insert "draft")
      (qwen-companion-ask-previous)
      (insert " edited")
      (qwen-companion-ask-previous)
      (should (equal "First" (qwen-companion-ask-test--prompt)))
      (qwen-companion-ask-next)
      (should (equal "Second edited" (qwen-companion-ask-test--prompt)))
      (qwen-companion-ask-next)
      (should (equal "draft" (qwen-companion-ask-test--prompt)))
      (qwen-companion-ask-previous 2)
      (qwen-companion-ask-submit)
      (should (equal '(("*one*" "First")) typed))
      (dolist (text '("Second edited" "draft"))
        (should (member text (qwen-companion-prompts-of root))))
      (qwen-companion-ask t)
      (should (equal "" (qwen-companion-ask-test--prompt))))))

(ert-deftest qwen-companion-ask-test-a-prompt-that-is-not-sent-is-in-the-history ()
  "A prompt of the minibuffer is kept too, without its text properties."
  (qwen-companion-ask-test--with
    (qwen-companion-ask-test--with-terminals '("one")
      (cl-letf (((symbol-function 'qwen-companion-terminal-send-prompt)
                 (lambda (&rest _) (user-error "Not sent: something is typed"))))
        (with-current-buffer (find-file "a.py")
          (should-error (qwen-companion-ask-send "Long thoughts") :type 'user-error)
          (should (equal "Long thoughts" (car (qwen-companion-prompts-of root)))))))
    (qwen-companion-ask t)
    (insert (propertize "Last words" 'field (current-buffer)))
    (qwen-companion-ask-test--exit)
    (should (equal qwen-companion-prompts-history
                   (read (prin1-to-string qwen-companion-prompts-history))))))

(ert-deftest qwen-companion-ask-test-asks-before-it-quotes-a-long-region ()
  "On no, the place alone is named; a long hunk is cut off as a compilation is."
  (qwen-companion-ask-test--with
    (transient-mark-mode 1)
    (write-region (mapconcat (lambda (number) (format "line %d of this file\n" number))
                             (number-sequence 1 16000) "")
                  nil "long.txt" nil 'silent)
    (dolist (yes '(nil t))
      (find-file "long.txt")
      (goto-char (point-min))
      (push-mark (point-max) t t)
      (let (asked)
        (qwen-companion-test-answering (lambda (prompt) (setq asked prompt) yes)
          (qwen-companion-ask))
        (should (string-match-p "16000 lines" asked)))
      (should (string-match-p (if yes "\n```\nline 1 of" "\\`long\\.txt, lines 1-16000\n\\'")
                              (qwen-companion-ask-test--prompt)))
      (erase-buffer))
    (let ((default-directory (file-name-as-directory root)))
      (with-temp-buffer
        (insert "--- a/x\n+++ b/x\n@@ -0,0 +1,2000 @@\n")
        (dotimes (number 2000)
          (insert (format "+line %d\n" number)))
        (diff-mode)
        (search-backward "+line 1000\n")
        (qwen-companion-ask))
      (should (< 7900 (length (qwen-companion-ask-test--prompt)) 8100)))))

(ert-deftest qwen-companion-ask-test-leaves-nothing-behind ()
  (let ((kill-emacs-hook nil)
        (buffers (list (generate-new-buffer "one") (generate-new-buffer "two")))
        (exits-p (lambda () (memq #'qwen-companion-ask--save-drafts kill-emacs-hook))))
    (unwind-protect
        (progn
          ;; Those of the tests before.
          (dolist (buffer (buffer-list))
            (when (buffer-local-value 'qwen-companion-ask-mode buffer)
              (kill-buffer buffer)))
          (dolist (buffer buffers)
            (with-current-buffer buffer
              (setq qwen-companion-ask--root "/")
              (qwen-companion-ask-mode 1)))
          (with-current-buffer (car buffers)
            (qwen-companion-ask-mode -1)
            (should-not header-line-format)
            (dolist (hook '(completion-at-point-functions kill-buffer-hook))
              (should-not (seq-filter (lambda (function)
                                        (string-prefix-p "qwen" (format "%s" function)))
                                      (symbol-value hook)))))
          ;; The other prompt is still to be kept.
          (should (funcall exits-p))
          (kill-buffer (cadr buffers))
          (should-not (funcall exits-p)))
      (mapc #'kill-buffer (seq-filter #'buffer-live-p buffers)))))

(ert-deftest qwen-companion-ask-test-takes-back-what-waits ()
  (qwen-companion-ask-test--with
    (qwen-companion-ask-test--with-terminals '("one")
      (find-file "a.py")
      (should-error (qwen-companion-ask-take-back) :type 'user-error)
      (plist-put (car sessions) :state '(:activity working :since 1))
      (unwind-protect
          (progn
            (dolist (prompt '("First" "Second" "Third"))
              (qwen-companion-ask t)
              (insert prompt)
              (qwen-companion-ask-submit))
            (qwen-companion-test-choosing
                (lambda (_prompt table &rest _)
                  (should (equal '(qwen-companion-prompt ("1 First" . "   *one*") ("2 Second" . "  *one*")
                                                         ("3 Third" . "   *one*"))
                                 (qwen-companion-test-candidates table)))
                  "2 Second")
              (qwen-companion-ask-take-back))
            (should (equal "Second\n" (qwen-companion-ask-test--prompt)))
            (should (equal '("First" "Third")
                           (mapcar (lambda (waiting) (nth 2 waiting))
                                   (qwen-companion-prompts-waiting))))
            (should-not typed))
        (kill-buffer "*one*")))))

(ert-deftest qwen-companion-ask-test-completes-files ()
  "File names are completed by any part of them."
  (qwen-companion-ask-test--with
    (find-file "a.py")
    (cl-letf (((symbol-function 'project-files)
               (lambda (&rest _) (mapcar #'expand-file-name '("lib/deep/tool.el" "a.py")))))
      (qwen-companion-ask t)
      (insert "See @tool")
      (completion-at-point)
      (qwen-companion-ask-test--quotes "See @lib/deep/tool.el")
      (insert "me@tool")
      (should-not (qwen-companion-ask--complete)))))

(ert-deftest qwen-companion-ask-test-completes-slash-commands ()
  "Built-in, user and project commands are completed, at the beginning only."
  (qwen-companion-ask-test--with
    (let ((process-environment
           (cons (concat "QWEN_HOME=" (expand-file-name "home")) process-environment)))
      (dolist (file '("home/commands/standup.md" "home/commands/twice.toml"
                      ".qwen/commands/git/commit.toml" ".qwen/commands/twice.md"
                      ".qwen/commands/a:b.md" ".qwen/commands/not a name.md"
                      ".qwen/commands/turned\u202Eround.md" ".qwen/commands/notes.txt"
                      ".qwen/commands/mine.md"))
        (make-directory (file-name-directory file) t)
        (write-region "" nil file nil 'silent))
      (with-current-buffer (find-file-noselect ".qwen/commands/mine.md")
        (setq qwen-companion-exposure 'hide))
      (find-file "a.py")
      (qwen-companion-ask t)
      (insert "/git:c")
      (completion-at-point)
      (qwen-companion-ask-test--quotes "/git:commit")
      (insert "/compr")
      (completion-at-point)
      (should (equal "/compress" (qwen-companion-ask-test--prompt)))
      (pcase-let* ((`(,_ ,_ ,table . ,options) (qwen-companion-ask--complete-command))
                   (about (plist-get options :annotation-function)))
        (should (equal '(category . qwen-companion-slash-command)
                       (assq 'category (completion-metadata "" table nil))))
        (dolist (name '("standup" "twice" "git:commit" "a_b" "model"))
          (should (member name (all-completions "" table))))
        ;; Neither what a CLI with an IDE does not do, nor what it knows on demand only.
        (dolist (name '("not a name" "turned" "notes" "mine" "rewind" "trust" "lsp"))
          (should-not (all-completions name table)))
        (should (= 1 (length (all-completions "twice" table))))
        (should (equal "  of the project" (funcall about "twice")))
        (should (equal "  your own" (funcall about "standup"))))
      (dolist (text '("See /comp" "/usr/comp" "One\n/comp"))
        (erase-buffer)
        (insert text)
        (should-not (qwen-companion-ask--complete-command))))))

;;; A killed Emacs

(defun qwen-companion-ask-test--killed (root &rest forms)
  "Evaluate FORMS in another Emacs in ROOT, where a CLI is connected; kill it.
It auto-saves before."
  (let ((default-directory root))
    (should
     (equal "Killed"
            (apply
             #'call-process (expand-file-name invocation-name invocation-directory) nil nil nil
             "-Q" "--batch"
             (append
              (mapcan (lambda (directory) (list "-L" directory)) load-path)
              (list "-l" "qwen-companion-test-helper" "-l" "qwen-companion-ask" "--eval"
                    (format "%S"
                            `(let ((temporary-file-directory ,root)
                                   (qwen-companion-diff-arrival 'command))
                               (setq qwen-companion-drafts-directory
                                     ,qwen-companion-drafts-directory)
                               (qwen-companion-test-with-backend
                                 ,@forms
                                 (do-auto-save t)
                                 (signal-process (emacs-pid) 'KILL)))))))))))

(defun qwen-companion-ask-test--drafts ()
  "Return the files of auto-saved texts."
  (directory-files qwen-companion-drafts-directory t "\\`[^.]"))

(ert-deftest qwen-companion-ask-test-texts-of-a-killed-emacs-come-back ()
  "They are in private files, are told of, and come back by a command."
  (qwen-companion-ask-test--with
    (qwen-companion-ask-test--killed
     default-directory
     '(qwen-companion-ask t)
     '(insert "Half written, é")
     '(qwen-companion-test-propose "unedited.py" "as it was\n")
     '(qwen-companion-test-edit (qwen-companion-test-propose "a.py" "proposed\n") "by me\n")
     `(qwen-companion-test-edit
       (qwen-companion-test-propose "plans/1.md" "# Plan\n" :held t :kind 'plan :directory ,root)
       "And test it.\n")
     '(with-current-buffer (qwen-companion-proposal-buffer
                            (qwen-companion-test-propose "b c.txt" "two\n"))
        (cl-letf (((symbol-function 'read-string) (lambda (&rest _) "Why?")))
          (qwen-companion-diff-comment))))
    (should (= #o700 (file-modes qwen-companion-drafts-directory)))
    (dolist (file (qwen-companion-ask-test--drafts))
      (should (= #o600 (file-modes file))))
    (should (string-match-p "\\`.*4 texts .*M-x qwen-companion-recover-drafts"
                            (qwen-companion-test-messages
                              (qwen-companion--state-changed 'ready))))
    (should (string-match-p "a prompt for .*your text of .*a\\.py\\|your text of .*a\\.py.*a prompt for"
                            (qwen-companion-test-messages
                              (qwen-companion-recover-drafts))))
    (should-not (qwen-companion-drafts-orphaned))
    (with-current-buffer "*qwen-companion kept: a.py*"
      (should (equal "proposed\nby me\n" (buffer-string)))
      ;; This Emacs may be killed, too.
      (should (equal "proposed\nby me\n" (qwen-companion-drafts-text buffer-auto-save-file-name)))
      (qwen-companion-kept-discard))
    (qwen-companion-ask t)
    (dolist (text '("Half written, é" "# Plan\nAnd test it." "> two\nWhy?"))
      (should (string-search text (buffer-string))))
    (should (= 1 (length (qwen-companion-ask-test--drafts))))
    (cl-letf (((symbol-function 'qwen-companion-ask--choose) #'ignore)
              ((symbol-function 'qwen-companion-prompts-send) (lambda (&rest _) "Sent")))
      (qwen-companion-ask-submit))
    (should-not (qwen-companion-ask-test--drafts))
    (should-error (qwen-companion-recover-drafts) :type 'user-error)))

(provide 'qwen-companion-ask-test)
;;; qwen-companion-ask-test.el ends here
