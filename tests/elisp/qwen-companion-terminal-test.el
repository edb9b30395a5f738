;;; qwen-companion-terminal-test.el --- Tests of terminals and their environment  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Code:

;; An Emacs without windows does not load it by itself.
(require 'dnd)
(require 'qwen-companion-attention)
(require 'qwen-companion-resume)
(require 'qwen-companion-test-helper)

(defvar project-current-directory-override)
(defvar server-name)
(defvar server-process)
(defvar server-socket-dir)
(defvar server-use-tcp)

(defconst qwen-companion-terminal-test--variables
  '(("QWEN_COMPANION_TEST_A" "1") ("QWEN_COMPANION_TEST_B" "/x:/y")))

(defun qwen-companion-terminal-test--shell-says (name)
  "Return the environment variable NAME of a process started now."
  (with-temp-buffer
    (call-process "sh" nil t nil "-c" (format "printf %%s \"${%s-unset}\"" name))
    (buffer-string)))

(defun qwen-companion-terminal-test--setenv (name value)
  "Set the environment variable NAME to VALUE in all of Emacs; nil removes it."
  (setq-default process-environment
                (setenv-internal (default-value 'process-environment) name value nil)))

(defun qwen-companion-terminal-test--open (root &optional input)
  "Start the CLI in ROOT, as is done once its files are there.
INPUT is the number of the event with which the user asked for it."
  (qwen-companion-terminal--open root nil input))

(ert-deftest qwen-companion-terminal-test-environment-comes-and-goes ()
  "A value that the user has set, before or meanwhile, is neither lost nor undone."
  (let ((before (copy-sequence (default-value 'process-environment)))
        (mine (lambda (value) (qwen-companion-terminal-test--setenv "QWEN_COMPANION_TEST_A" value))))
    (cl-flet ((given (variables a b)
                (if variables
                    (qwen-companion-terminal-set-environment variables)
                  (qwen-companion-terminal-restore-environment))
                (should (equal (list a b)
                               (mapcar #'qwen-companion-terminal-test--shell-says
                                       '("QWEN_COMPANION_TEST_A" "QWEN_COMPANION_TEST_B"))))))
      (unwind-protect
          (progn
            (given qwen-companion-terminal-test--variables "1" "/x:/y")
            (given '(("QWEN_COMPANION_TEST_B" "/z")) "unset" "/z")
            (given nil "unset" "unset")
            (should (equal (sort before #'string<)
                           (sort (copy-sequence (default-value 'process-environment)) #'string<)))
            (funcall mine "before")
            (given qwen-companion-terminal-test--variables "1" "/x:/y")
            (given nil "before" "unset")
            (given qwen-companion-terminal-test--variables "1" "/x:/y")
            (funcall mine "meanwhile")
            (given nil "meanwhile" "unset")
            (given qwen-companion-terminal-test--variables "1" "/x:/y")
            (funcall mine "last")
            (given '(("QWEN_COMPANION_TEST_A" "2")) "2" "unset")
            (given nil "last" "unset"))
        (qwen-companion-terminal-restore-environment)
        (funcall mine nil)))))

;;; Every kind of terminal

(declare-function eat "ext:eat" (&optional program arg))
(declare-function eshell-send-input "esh-mode" (&optional use-region queue-p no-newline))
(declare-function vterm "ext:vterm" (&optional arg))
(declare-function vterm-send-string "ext:vterm" (string &optional paste-p))
(defvar compilation-ask-about-save)
(defvar eat-buffer-name)
(defvar eshell-directory-name)
(defvar explicit-shell-file-name)
(defvar vterm-shell)

(defun qwen-companion-terminal-test--type (text)
  "Send TEXT and a line end to the process of the current buffer."
  (process-send-string (get-buffer-process (current-buffer)) (concat text "\n")))

(defun qwen-companion-terminal-test--ask (run)
  "Return the environment variables of a command that the function RUN starts.
RUN is called with the command line in a new window configuration."
  (let ((before (buffer-list))
        (answer (expand-file-name "answer"))
        (confirm-kill-processes nil))
    (save-window-excursion
      (unwind-protect
          (progn
            (funcall run (concat "printf '%s %s' \"$QWEN_COMPANION_TEST_A\" \"$QWEN_COMPANION_TEST_B\""
                                 " >half && mv half answer"))
            (qwen-companion-test-wait-for (file-exists-p answer))
            (qwen-companion-test-file-text answer))
        (delete-file answer)
        (dolist (buffer (buffer-list))
          (unless (memq buffer before)
            (when-let* ((process (get-buffer-process buffer)))
              (set-process-query-on-exit-flag process nil))
            (let (kill-buffer-hook kill-buffer-query-functions)
              (kill-buffer buffer))))))))

(defmacro qwen-companion-terminal-test--define (kind &rest body)
  "Define a test that terminals of KIND carry the variables while they are set.
KIND is a symbol; BODY opens one and runs the shell command COMMAND in it."
  (declare (indent 1))
  `(ert-deftest ,(intern (format "qwen-companion-terminal-test-variables-in-%s" kind)) ()
     (qwen-companion-test-with-files nil
       (let ((run (lambda (command) ,@body)))
         (unwind-protect
             (progn
               (qwen-companion-terminal-set-environment
                qwen-companion-terminal-test--variables)
               (should (equal "1 /x:/y" (qwen-companion-terminal-test--ask run))))
           (qwen-companion-terminal-restore-environment))
         (should (equal " " (qwen-companion-terminal-test--ask run)))))))

(qwen-companion-terminal-test--define vterm
  (unless (require 'vterm nil t)
    (ert-skip "vterm is not installed"))
  (let ((vterm-shell "/bin/sh"))
    (vterm))
  (vterm-send-string (concat command "\n")))

(qwen-companion-terminal-test--define eat
  (unless (require 'eat nil t)
    (ert-skip "eat is not installed; Debian 12 does not have it"))
  (eat "/bin/sh")
  (with-current-buffer eat-buffer-name
    (qwen-companion-terminal-test--type command)))

(qwen-companion-terminal-test--define term
  (term "/bin/sh")
  (qwen-companion-terminal-test--type command))

(qwen-companion-terminal-test--define ansi-term
  (ansi-term "/bin/sh")
  (qwen-companion-terminal-test--type command))

(qwen-companion-terminal-test--define shell
  (let ((explicit-shell-file-name "/bin/sh"))
    (shell))
  (qwen-companion-terminal-test--type command))

(qwen-companion-terminal-test--define eshell
  (let ((eshell-directory-name default-directory))
    (eshell)
    (with-temp-file "command"
      (insert command))
    (qwen-companion-test-append "sh command")
    (eshell-send-input)))

(qwen-companion-terminal-test--define compile
  (let (compilation-ask-about-save)
    (compile command)))

(qwen-companion-terminal-test--define async-shell-command
  (async-shell-command command))

(ert-deftest qwen-companion-terminal-test-local-environment-is-left-alone ()
  (with-temp-buffer
    (setq-local process-environment (list "ONLY=here"))
    (qwen-companion-terminal-set-environment qwen-companion-terminal-test--variables)
    (qwen-companion-terminal-restore-environment)
    (should (equal '("ONLY=here") process-environment))))

(ert-deftest qwen-companion-terminal-test-command ()
  (let ((qwen-companion-qwen-command '("sh" "-x")))
    (let ((qwen-companion-approval-mode "default"))
      (should (equal '("sh" "-x" "--approval-mode" "default") (qwen-companion-terminal-command))))
    (let ((qwen-companion-approval-mode nil))
      (should (equal '("sh" "-x") (qwen-companion-terminal-command))))))

(defmacro qwen-companion-terminal-test-with-process (&rest body)
  "Run BODY with a running `process' in `buffer', and its `pid'."
  (declare (indent 0) (debug t))
  `(with-temp-buffer
     (let* ((buffer (current-buffer))
            (process (make-process :name "terminal" :buffer buffer
                                   :command '("sleep" "1000")
                                   :sentinel #'ignore :noquery t))
            (pid (process-id process)))
       (unwind-protect
           (progn ,@body)
         (delete-process process)))))

(ert-deftest qwen-companion-terminal-test-buffer-of-a-session ()
  "It is the buffer of the nearest process above the CLI."
  (qwen-companion-terminal-test-with-process
    (should (eq buffer (qwen-companion-terminal-session-buffer
                        (list :pid 1 :ancestors (list 1 pid)))))
    (let ((outer buffer)
          (outer-pid pid))
      (qwen-companion-terminal-test-with-process
        (should (eq buffer (qwen-companion-terminal-session-buffer
                            (list :ancestors (list pid outer-pid)))))
        (should (eq outer (qwen-companion-terminal-session-buffer
                           (list :ancestors (list outer-pid pid)))))
        ;; What has no buffer, like a job of the user's, is no terminal.
        (set-process-buffer process nil)
        (should (eq outer (qwen-companion-terminal-session-buffer
                           (list :ancestors (list pid outer-pid)))))))))

(ert-deftest qwen-companion-terminal-test-buffer-of-a-session-at-a-place ()
  "Its ids are those of processes there, and its terminal is one of that place."
  (qwen-companion-terminal-test-with-process
    (let ((session (list :place "/ssh:far:" :ancestors (list 7 pid))))
      (setq default-directory "/ssh:far:/work/")
      (should-not (qwen-companion-terminal-session-buffer session))
      (process-put process 'remote-pid 7)
      (should (eq buffer (qwen-companion-terminal-session-buffer session)))
      (setq default-directory "/ssh:farther:/work/")
      (should-not (qwen-companion-terminal-session-buffer session))
      (setq qwen-companion-terminal-number 3
            session (list :place "/ssh:far:" :terminal 3))
      (should-not (qwen-companion-terminal-session-buffer session))
      (setq default-directory "/ssh:far:/work/")
      (should (eq buffer (qwen-companion-terminal-session-buffer session))))))

(ert-deftest qwen-companion-terminal-test-session-without-buffer ()
  (let ((connection (make-network-process :name "server" :server t
                                          :host 'local :service t
                                          :buffer (current-buffer)
                                          :noquery t)))
    (unwind-protect
        (progn
          (should-not (qwen-companion-terminal-session-buffer nil))
          (should-not (qwen-companion-terminal-session-buffer '(:id "s")))
          (should-not (qwen-companion-terminal-session-buffer '(:ancestors (1 2)))))
      (delete-process connection)))
  (let (session ended)
    (qwen-companion-terminal-test-with-process
      (setq session (list :ancestors (list pid)) ended process)
      (should (qwen-companion-terminal-session-buffer session))
      (delete-process process)
      (should-not (qwen-companion-terminal-session-buffer session)))
    (should-not (process-live-p ended))
    (should-not (qwen-companion-terminal-session-buffer session))))

(ert-deftest qwen-companion-terminal-test-missing-program ()
  "Nothing is started, not even the mode, and the error names the way out."
  (let ((qwen-companion-qwen-command '("no-such-qwen")))
    (qwen-companion-test-refused "npm install" (qwen-companion-run temporary-file-directory))
    (should-not qwen-companion-mode)
    (should-not qwen-companion-terminal--waiting)))

(ert-deftest qwen-companion-terminal-test-bad-directories ()
  (let ((qwen-companion-qwen-command '("sh"))
        (qwen-companion-remote-places '(("/ssh:host:" . leave))))
    (qwen-companion-test-refused "not served" (qwen-companion-run "/ssh:host:/tmp"))
    (qwen-companion-test-refused "No directory" (qwen-companion-run "/no/such/directory"))
    (should-not qwen-companion-mode)))

(ert-deftest qwen-companion-terminal-test-waits-for-the-discovery-files ()
  "The CLI starts when the files name its directory, and not before."
  (qwen-companion-test-with-files nil
    (qwen-companion-test-with-backend
      (let* ((qwen-companion-mode t)
             (qwen-companion-qwen-command '("sh"))
             (root (directory-file-name default-directory))
             opened)
        (cl-letf (((symbol-function 'qwen-companion-terminal--open)
                   (lambda (directory &rest _) (push directory opened))))
          (qwen-companion-run default-directory)
          (should (member root (plist-get (car (last (qwen-companion-test-sent 'roots))) :roots)))
          (should-not opened)
          (qwen-companion-roots-on-published '(:roots ("/another") :reachable t))
          (qwen-companion-terminal-published)
          (should-not opened)
          (qwen-companion-roots-on-published (list :roots (list root) :reachable t))
          (qwen-companion-terminal-published)
          (qwen-companion-terminal-published)
          (should (equal (list root) opened)))))))

(defun qwen-companion-terminal-test--buffer (root)
  "Return the buffer in which a CLI runs in ROOT, if any."
  (qwen-companion-terminal-running root))

(defun qwen-companion-terminal-test--named (root)
  "Return the buffer with the name of a terminal in ROOT, if any."
  (get-buffer (format "*qwen: %s*" (file-name-nondirectory root))))

(ert-deftest qwen-companion-terminal-test-term-runs-the-program ()
  "Without vterm the CLI runs in a term buffer, in its directory."
  (qwen-companion-test-with-files nil
    (save-window-excursion
      (let ((qwen-companion-terminal 'term)
            (qwen-companion-approval-mode nil)
            (qwen-companion-qwen-command '("sh" "-c" "pwd; exec cat"))
            (root (directory-file-name default-directory)))
        (qwen-companion-terminal-test--open root)
        (let ((buffer (qwen-companion-terminal-test--buffer root)))
          (should (eq 'term-mode (buffer-local-value 'major-mode buffer)))
          (set-process-query-on-exit-flag (get-buffer-process buffer) nil)
          (qwen-companion-test-wait-for
           (with-current-buffer buffer
             (string-match-p (regexp-quote root)
                             (replace-regexp-in-string "\n" "" (buffer-string)))))
          (delete-process (get-buffer-process buffer))
          (should-not (qwen-companion-terminal-test--buffer root))
          (qwen-companion-terminal-test--open root)
          (should-not (buffer-live-p buffer))
          (should (= 1 (length (qwen-companion-terminal-buffers))))
          (delete-process (get-buffer-process (qwen-companion-terminal-test--buffer root))))))))

(defun qwen-companion-terminal-test--server ()
  "Return a process that stands for the server of Emacs."
  (make-process :name "server" :command '("cat") :noquery t :connection-type 'pipe))

(ert-deftest qwen-companion-terminal-test-environment-of-the-buffer ()
  "A CLI gets the environment of the buffer it is started from, and our variables."
  (require 'server)
  (qwen-companion-test-with-files '(("bin/fake-cli" "#!/bin/sh
echo \"<$ONLY_HERE/$QWEN_COMPANION_TEST_A/${EDITOR##*/}>\"
exec cat"))
    (set-file-modes "bin/fake-cli" #o755)
    (save-window-excursion
      (qwen-companion-test-with-backend
        (let* ((qwen-companion-mode t)
               (qwen-companion-terminal 'term)
               (qwen-companion-approval-mode nil)
               (qwen-companion-qwen-command '("fake-cli"))
               (server-process (qwen-companion-terminal-test--server))
               (root (directory-file-name default-directory)))
          (unwind-protect
              (progn
                (with-temp-buffer
                  (setq default-directory (file-name-as-directory root))
                  ;; As envrc and direnv do.
                  (setq-local exec-path (cons (expand-file-name "bin") exec-path))
                  (setq-local process-environment
                              (list "ONLY_HERE=yes"
                                    (format "PATH=%s:%s" (expand-file-name "bin") (getenv "PATH"))))
                  (qwen-companion-run root))
                ;; The first start of the mode: the variables come later, with another buffer current.
                (qwen-companion-terminal-set-environment qwen-companion-terminal-test--variables)
                (qwen-companion-roots-on-published (list :roots (list root) :reachable t))
                (qwen-companion-terminal-published)
                (let ((buffer (qwen-companion-terminal-test--buffer root)))
                  (set-process-query-on-exit-flag (get-buffer-process buffer) nil)
                  (qwen-companion-test-wait-for
                   (with-current-buffer buffer
                     (string-search "<yes/1/emacsclient>" (buffer-string))))
                  (delete-process (get-buffer-process buffer))))
            (delete-process server-process)
            (qwen-companion-terminal-restore-environment)))))))

(ert-deftest qwen-companion-terminal-test-in-the-project-that-is-switched-to ()
  (qwen-companion-test-with-files nil
    (let ((root default-directory))
      (with-temp-buffer
        (setq default-directory "/")
        (cl-progv '(project-current-directory-override) (list root)
          (should (file-equal-p root (qwen-companion-roots-here))))
        (should (equal "/" (qwen-companion-roots-here)))))))

(ert-deftest qwen-companion-terminal-test-conversations-take-no-keys ()
  "They are offered at once, and not if the user has typed meanwhile."
  (let (asked (num-nonmacro-input-events 7))
    (cl-letf (((symbol-function 'qwen-companion-backend-connected-p) #'always)
              ((symbol-function 'qwen-companion-backend-call) #'always)
              ((symbol-function 'qwen-companion-state) (lambda () 'ready))
              ((symbol-function 'completing-read)
               (lambda (&rest _) (setq asked t) "1 tea"))
              ((symbol-function 'qwen-companion-terminal-open) #'ignore))
      (cl-flet ((answer ()
                  (qwen-companion-test-messages
                    (qwen-companion-backend-on-answer
                     (list :id qwen-companion-backend--last-request
                           :sessions '((:id "s" :time 1000 :prompt "tea"))))
                    (qwen-companion-test-wait-for
                     (not (cl-find #'qwen-companion-resume--offer timer-list
                                   :key #'timer--function))))))
        (qwen-companion-resume "/")
        (answer)
        (should asked)
        (setq asked nil)
        (qwen-companion-resume "/")
        (setq num-nonmacro-input-events 8)
        (should (string-match-p "repeat M-x qwen-companion-resume" (answer)))
        (should-not asked)))))

(ert-deftest qwen-companion-terminal-test-in-a-worktree ()
  "Git makes the worktree, also from another one; a bad name starts none.
What git cannot make one of is said before, and what it will lack."
  (qwen-companion-test-with-files '(("a.txt" "a\n"))
    (let* ((git (lambda (&rest arguments)
                  (should (eql 0 (apply #'call-process "git" nil nil nil
                                        "-c" "user.name=U" "-c" "user.email=u@example.org"
                                        arguments)))))
           (root default-directory)
           (tree (lambda (name) (expand-file-name (concat ".qwen/worktrees/" name) root)))
           (opened nil))
      (cl-letf (((symbol-function 'qwen-companion-terminal-open)
                 (lambda (directory arguments)
                   (should-not arguments)
                   (push directory opened)))
                ((symbol-function 'qwen-companion-terminal-go-to)
                 (lambda (_) (ert-fail "Went to one that runs")))
                ((symbol-function 'qwen-companion-terminal-command) #'ignore)
                ((symbol-function 'qwen-companion-state) (lambda () 'ready)))
        (let ((qwen-companion-mode t))
          (cl-flet ((refusal (name)
                      (cadr (should-error (qwen-companion-run-in-worktree name)
                                          :type 'user-error)))
                    (await (name)
                      (qwen-companion-test-wait-for (member (funcall tree name) opened))
                      (should (file-exists-p (expand-file-name "a.txt" (funcall tree name))))))
            (should (string-match-p "in no git repository" (refusal "x")))
            (funcall git "init" "-q" "--bare" "bare")
            (let ((default-directory (expand-file-name "bare/")))
              (should (string-match-p "in no git repository with a work tree" (refusal "x"))))
            (delete-directory "bare" t)
            (funcall git "init" "-q")
            (should (string-match-p "has no commit to start" (refusal "x")))
            (funcall git "add" "a.txt")
            (funcall git "commit" "-q" "-m" "a")
            (funcall git "branch" "worktree-there")
            (should (string-match-p "branch worktree-there already" (refusal "there")))
            (write-region "b\n" nil "a.txt" nil 'silent)
            (should (string-match-p
                     "without uncommitted changes (1 file)"
                     (qwen-companion-test-messages
                       (qwen-companion-run-in-worktree " fix-1.a_b "))))
            (await "fix-1.a_b")
            ;; Nothing of it is seen in the main tree but the rule.
            (should (equal " M a.txt\n?? .qwen/.gitignore"
                           (qwen-companion-terminal--git root "status" "--porcelain" "-uall")))
            (make-directory "sub")
            (dolist (directory (list (expand-file-name "sub/") (funcall tree "fix-1.a_b")))
              (let ((default-directory (file-name-as-directory directory))
                    (name (file-name-base (directory-file-name directory))))
                (qwen-companion-run-in-worktree (concat "from-" name))
                (await (concat "from-" name))))
            ;; Those of a submodule are in its work tree, not where git keeps it.
            (funcall git "init" "-q" "other")
            (write-region "b\n" nil "other/a.txt" nil 'silent)
            (funcall git "-C" "other" "add" "a.txt")
            (funcall git "-C" "other" "commit" "-q" "-m" "b")
            (funcall git "-c" "protocol.file.allow=always" "submodule" "--quiet" "add"
                     (expand-file-name "other") "module")
            (let* ((project-vc-merge-submodules nil)
                   (default-directory (expand-file-name "module/"))
                   (inside (expand-file-name ".qwen/worktrees/in")))
              (qwen-companion-run-in-worktree "in")
              (qwen-companion-test-wait-for (member inside opened))
              (should (file-exists-p (expand-file-name "a.txt" inside))))
            ;; That which is there is used again.
            (setq opened nil)
            (qwen-companion-run-in-worktree "from-sub")
            (should (equal (list (funcall tree "from-sub")) opened))
            (dolist (name '("two words" "../up" "a;b" "a\nb" "-b"))
              (should-error (qwen-companion-run-in-worktree name) :type 'user-error))
            ;; Git has the last word about a name.
            (qwen-companion-test-wait-for
             (string-match-p "git failed: .*not a valid"
                             (qwen-companion-test-messages
                               (qwen-companion-run-in-worktree "a..b")
                               (accept-process-output nil 0.2))))
            (should (= 1 (length opened)))))))))

(ert-deftest qwen-companion-terminal-test-a-late-terminal-takes-no-key ()
  "A terminal that opens after more input is shown, not selected, and runs the chosen CLI."
  (save-window-excursion
    (qwen-companion-test-with-files nil
      (let* ((directory (directory-file-name default-directory))
             (qwen-companion-terminal-clis (list (cons directory '("sh" "-c" "cat"))))
             (qwen-companion-terminal 'term)
             (window (selected-window)))
        (dolist (case (list (cons (1- num-nonmacro-input-events) t)
                            (cons num-nonmacro-input-events nil)))
          (qwen-companion-terminal-test--open directory (car case))
          (should (eq (cdr case) (eq window (selected-window))))
          (let ((buffer (car (qwen-companion-terminal-buffers)))
                (kill-buffer-query-functions nil))
            (should (get-buffer-window buffer))
            (should (equal "cat" (car (last (process-command (get-buffer-process buffer))))))
            (set-process-sentinel (get-buffer-process buffer) #'ignore)
            (kill-buffer buffer))
          (select-window window))))))

(ert-deftest qwen-companion-terminal-test-a-directory-sets-safe-values ()
  "Its .dir-locals.el sets safe values; unsafe ones ask nothing and do nothing."
  (qwen-companion-test-with-files
      '((".dir-locals.el" "((nil . ((qwen-companion-terminal . term)
 (qwen-companion-approval-mode . \"yolo\") (qwen-companion-qwen-command . (\"rm\")))))"))
    (let ((qwen-companion-terminal 'eat)
          (qwen-companion-approval-mode nil)
          (qwen-companion-qwen-command '("sh")))
      (should (equal '(term "sh") (qwen-companion-terminal--options default-directory)))
      (with-temp-file ".dir-locals.el"
        (insert "((nil . ((qwen-companion-approval-mode . \"plan\"))))"))
      (should (equal '(eat "sh" "--approval-mode" "plan")
                     (qwen-companion-terminal--options default-directory)))
      ;; What asks less than the user's own value is not safe.
      (with-temp-file ".dir-locals.el"
        (insert "((nil . ((qwen-companion-approval-mode . nil))))"))
      (setq qwen-companion-approval-mode "default")
      (should (equal '(eat "sh" "--approval-mode" "default")
                     (qwen-companion-terminal--options default-directory)))
      (with-temp-file ".dir-locals.el"
        (insert "((nil . ((qwen-companion-approval-mode . \"default\"))))"))
      (setq qwen-companion-approval-mode "plan")
      (should (equal '(eat "sh" "--approval-mode" "plan")
                     (qwen-companion-terminal--options default-directory))))))

(ert-deftest qwen-companion-terminal-test-emacs-is-the-editor ()
  "Emacs is the CLI's editor while the Emacs server runs, if the option says so."
  (require 'server)
  (let ((server-process nil)
        (server-use-tcp nil)
        (server-socket-dir "/run/me")
        (server-name "work"))
    (should-not (qwen-companion-terminal--editor-variables))
    (with-temp-buffer
      (let* ((server-process (qwen-companion-terminal-test--server))
             (variables (qwen-companion-terminal--editor-variables)))
        (should (string-suffix-p "/emacsclient" (car variables)))
        (should (member "EMACS_SOCKET_NAME=/run/me/work" variables))
        (let ((qwen-companion-terminal-editor nil))
          (should-not (qwen-companion-terminal--editor-variables)))
        (delete-process server-process)))))

(defmacro qwen-companion-terminal-test--with-external (command &rest body)
  "Run BODY where COMMAND is the CLI and `external' the terminal.
ROOT is the directory."
  (declare (indent 1) (debug t))
  `(qwen-companion-test-with-files nil
     (let ((qwen-companion-terminal 'external)
           (qwen-companion-approval-mode nil)
           (qwen-companion-qwen-command ,command)
           (qwen-companion-terminal-external-command '("env" "-C" "%d" "%c"))
           (root (directory-file-name default-directory)))
       (qwen-companion-terminal-test--open root)
       ,@body)))

(ert-deftest qwen-companion-terminal-test-outside-of-emacs ()
  "The command template starts a terminal in the directory."
  (qwen-companion-terminal-test--with-external
      '("sh" "-c" "echo \"$0\" >half && mv half answer" "a b")
    (qwen-companion-test-wait-for (file-exists-p "answer"))
    (should (equal "a b\n" (qwen-companion-test-file-text "answer")))
    ;; The buffer goes with the terminal.
    (qwen-companion-test-wait-for (not (qwen-companion-terminal-test--named root)))))

(ert-deftest qwen-companion-terminal-test-a-buffer-stands-for-it ()
  "A terminal outside of Emacs has a buffer, where nothing can be typed."
  (qwen-companion-terminal-test--with-external '("cat")
    (let* ((buffer (qwen-companion-terminal-test--buffer root))
           (process (get-buffer-process buffer)))
      (unwind-protect
          (progn
            (should (eq buffer (qwen-companion-terminal-session-buffer
                                (list :id "one" :ancestors (list 1 (process-id process))))))
            (should (string-match-p "runs in env, outside of Emacs"
                                    (qwen-companion-test-buffer-text buffer)))
            (should-error (qwen-companion-terminal-send-prompt buffer "hello") :type 'user-error)
            (should-error (with-current-buffer buffer (qwen-companion-terminal-escape))
                          :type 'user-error)
            ;; Whoever looks at it does not see what the CLI does.
            (save-window-excursion
              (switch-to-buffer buffer)
              (should-not (qwen-companion-attention--selected-p buffer)))
            (kill-buffer buffer)
            (should (process-live-p process)))
        (delete-process process)))))

(ert-deftest qwen-companion-terminal-test-a-failure-outside-is-shown ()
  (qwen-companion-terminal-test--with-external '("sh" "-c" "echo no display >&2; exit 1")
    (let ((buffer (qwen-companion-terminal-test--named root)))
      (qwen-companion-test-wait-for
       (and (not (process-live-p (get-buffer-process buffer)))
            (string-search "no display" (qwen-companion-test-buffer-text buffer))))
      (kill-buffer buffer))))

(defvar ghostel-use-native-pty)

(ert-deftest qwen-companion-terminal-test-ghostel ()
  "With the functions of Ghostel 0.51: the CLI is a process of Emacs."
  (qwen-companion-test-with-files '(("ghostel.el" "(provide 'ghostel)\n"))
    (save-window-excursion
      (let ((qwen-companion-terminal 'ghostel)
            (qwen-companion-approval-mode nil)
            (qwen-companion-qwen-command '("cat"))
            (ghostel-use-native-pty t)
            (load-path (cons default-directory load-path))
            (root (directory-file-name default-directory))
            (sent nil))
        (cl-letf (((symbol-function 'ghostel-mode) (lambda () (setq major-mode 'ghostel-mode)))
                  ((symbol-function 'ghostel-exec)
                   (lambda (buffer program &optional args)
                     (should-not ghostel-use-native-pty)
                     (make-process :name "ghostel" :buffer buffer :noquery t
                                   :command (cons program args))))
                  ((symbol-function 'ghostel-paste-string) (lambda (text) (push text sent)))
                  ((symbol-function 'ghostel-send-string) (lambda (text) (push text sent))))
          (qwen-companion-terminal-test--open root)
          (let* ((buffer (qwen-companion-terminal-test--buffer root))
                 (process (get-buffer-process buffer)))
            (should (eq buffer (qwen-companion-terminal-session-buffer
                                (list :ancestors (list (process-id process))))))
            (qwen-companion-terminal-send-prompt buffer "hello")
            (qwen-companion-test-wait-for (equal '("\r" "hello") sent))
            (delete-process process)))))))

;;; Updates of the screen

(ert-deftest qwen-companion-terminal-test-updates-come-whole ()
  "No part of an update of the screen is drawn, unless its end does not come."
  (with-temp-buffer
    (let* ((drawn nil)
           (process (make-process :name "cli" :buffer (current-buffer) :command '("cat")
                                  :connection-type 'pipe :noquery t
                                  :filter (lambda (_process text) (push text drawn)))))
      (cl-flet ((comes (text) (funcall (process-filter process) process text)))
        (unwind-protect
            (progn
              (qwen-companion-terminal-coalesce-screen-updates process)
              (comes "plain")
              (should (equal '("plain") drawn))
              (comes "before\e[?2026h\e[2Jfirst half, with")
              (comes " the second")
              (should (equal '("before" "plain") drawn))
              (comes " half\e[?2026lafter\e[?2026h")
              (should (equal "\e[?2026h\e[2Jfirst half, with the second half\e[?2026lafter"
                             (car drawn)))
              ;; Its begin has come alone.
              (comes "next\e[?2026l")
              (should (equal "\e[?2026hnext\e[?2026l" (car drawn)))
              (let ((qwen-companion-terminal-updates--limit 0))
                (comes "\e[?2026hwithout an end h")
                (qwen-companion-test-wait-for (equal "\e[?2026hwithout an end h" (car drawn)))
                (comes "more")
                (should (equal "more" (car drawn)))))
          (delete-process process))))))

;;; Keys

(declare-function term-line-mode "term" ())
(declare-function term-send-raw "term" ())

(defconst qwen-companion-terminal-test--keys
  '(("C-c , r" . qwen-companion-review)
    ("C-c , a" . qwen-companion-diff-accept)
    ("C-c , k" . qwen-companion-diff-reject)
    ("C-c , i" . qwen-companion-terminal-escape)
    ("C-c , l" . qwen-companion-diffs))
  "Alist of a terminal's keys and their commands.")

(defun qwen-companion-terminal-test--bound-p ()
  "Return non-nil when our keys work in the current buffer."
  (cl-loop for (key . command) in qwen-companion-terminal-test--keys
           always (eq command (key-binding (kbd key)))))

(defmacro qwen-companion-terminal-test-in-term (&rest body)
  "Run BODY in a term buffer opened as for a CLI."
  (declare (indent 0) (debug t))
  `(qwen-companion-test-with-files nil
     (save-window-excursion
       (let ((qwen-companion-terminal 'term)
             (qwen-companion-approval-mode nil)
             (qwen-companion-qwen-command '("sh" "-c" "echo ready; exec cat"))
             (root (directory-file-name default-directory)))
         (qwen-companion-terminal-test--open root)
         (with-current-buffer (qwen-companion-terminal-test--buffer root)
           (unwind-protect
               (progn ,@body)
             (delete-process (get-buffer-process (current-buffer)))))))))

(ert-deftest qwen-companion-terminal-test-keys-in-term ()
  "They work in both modes of term; the other keys behind C-c still do too."
  (qwen-companion-terminal-test-in-term
    (should (qwen-companion-terminal-test--bound-p))
    (should (eq 'term-send-raw (key-binding (kbd "C-c C-c"))))
    (should (eq 'term-line-mode (key-binding (kbd "C-c C-j"))))
    (should (eq 'other-window (key-binding (kbd "C-c o"))))
    ;; As in other terminals; a literal C-x is C-x C-x.
    (should (eq 'other-window (key-binding (kbd "C-x o"))))
    (should (eq 'execute-extended-command (key-binding (kbd "M-x"))))
    (should (eq 'term-send-raw (key-binding (kbd "C-x C-x"))))
    ;; All that is covered is free.
    (let ((qwen-companion-review-keys-mode nil))
      (should-not (key-binding (kbd "C-c ,"))))
    (term-line-mode)
    (should (qwen-companion-terminal-test--bound-p))
    (should (eq 'term-char-mode (key-binding (kbd "C-c C-k"))))
    (should (eq 'exchange-point-and-mark (key-binding (kbd "C-x C-x"))))
    ;; C-c goes to the program where it did before.
    (let ((map (make-sparse-keymap)))
      (define-key map (kbd "C-c") #'term-send-raw)
      (use-local-map map)
      (should (eq 'term-send-raw (key-binding (kbd "C-c"))))))
  (let ((qwen-companion-terminal-keys nil))
    (qwen-companion-terminal-test-in-term
      (should-not (key-binding (kbd "C-c ,"))))))

(defun qwen-companion-terminal-test--wait-for (text)
  "Wait until TEXT is in the terminal, on one line or on several."
  (qwen-companion-test-wait-for
   (string-search text (replace-regexp-in-string "\n" "" (buffer-string)))))

(ert-deftest qwen-companion-terminal-test-dropped-files ()
  "A file that is dropped on a terminal is mentioned, relative to the project."
  (qwen-companion-terminal-test-in-term
    (with-temp-file "two words.txt")
    ;; Before that, what is typed is lost.
    (qwen-companion-terminal-test--wait-for "ready")
    (let ((url (concat "file://" root "/two%20words.txt")))
      (if (fboundp 'dnd-handle-multiple-urls)
          (dnd-handle-multiple-urls (selected-window) (list url) 'copy)
        (with-no-warnings (dnd-handle-one-url nil 'copy url))))
    (qwen-companion-terminal-test--wait-for "@two\\ words.txt ")))

(ert-deftest qwen-companion-terminal-test-image-of-the-clipboard ()
  "It is written to a private file, which is mentioned; without one that is said."
  (qwen-companion-terminal-test-in-term
    (let ((spool (expand-file-name "spool" root))
          (image (unibyte-string #x89 ?P ?N ?G 13 10 26 10)))
      (make-directory spool)
      (qwen-companion-terminal-test--wait-for "ready")
      (cl-letf (((symbol-function 'qwen-companion-backend-spool) (lambda () spool))
                ((symbol-function 'gui-get-selection)
                 (lambda (_selection type) (and (eq type 'image/png) image))))
        (qwen-companion-paste-image)
        (let ((file (car (directory-files spool t "\\.png\\'"))))
          (should (= #o600 (file-modes file)))
          (should (equal image (qwen-companion-test-file-bytes file)))
          (qwen-companion-terminal-test--wait-for (concat "@spool/" (file-name-nondirectory file))))
        (setq image nil)
        (qwen-companion-test-refused "no image in the clipboard" (qwen-companion-paste-image))))))

(ert-deftest qwen-companion-terminal-test-room-for-questions ()
  "A new window is high enough for them, unless the other one would be too low."
  (let ((lines (frame-height))
        (buffer (get-buffer-create "*cli*")))
    (save-window-excursion
      (unwind-protect
          (dolist (frame '(31 60 20))
            (set-frame-height nil frame)
            (switch-to-buffer (get-buffer-create "*elsewhere*"))
            (delete-other-windows)
            (qwen-companion-terminal-show buffer)
            (let ((height (window-body-height (get-buffer-window buffer)))
                  (other (window-body-height (get-buffer-window "*elsewhere*"))))
              (if (= frame 31)
                  (should (= 16 height))
                (should (<= (abs (- height other)) 1)))))
        (set-frame-height nil lines)
        (kill-buffer buffer)))))

(ert-deftest qwen-companion-terminal-test-side-window ()
  "The terminal is shown at its side of the frame; it is hidden and shown there again."
  (let ((qwen-companion-terminal-side 'right))
    (save-window-excursion
      (delete-other-windows)
      (switch-to-buffer (get-buffer-create "*elsewhere*"))
      (qwen-companion-terminal-test-in-term
        (dolist (shown '(t nil t))
          (let ((window (get-buffer-window (current-buffer))))
            (should (eq shown (and window t)))
            (when window
              (should (eq 'right (window-parameter window 'window-side))))
            (should (get-buffer-window "*elsewhere*")))
          (save-current-buffer
            (qwen-companion-toggle)))))))

(defun qwen-companion-terminal-test--check-keys (library map)
  "Check that our prefix is free in MAP, a keymap variable of LIBRARY."
  (unless (require library nil t)
    (ert-skip (format "%s is not installed" library)))
  (with-temp-buffer
    (use-local-map (symbol-value map))
    (should-not (key-binding (kbd "C-c ,")))
    (qwen-companion-review-keys-mode 1)
    (should (qwen-companion-terminal-test--bound-p))
    (should (commandp (key-binding (kbd "C-c C-c"))))))

(ert-deftest qwen-companion-terminal-test-keys-in-vterm ()
  (qwen-companion-terminal-test--check-keys 'vterm 'vterm-mode-map))

(ert-deftest qwen-companion-terminal-test-keys-in-eat ()
  (qwen-companion-terminal-test--check-keys 'eat 'eat-semi-char-mode-map))

(ert-deftest qwen-companion-terminal-test-prefix-has-a-name ()
  "Which-key shows our name after C-c, not only a prefix."
  (with-temp-buffer
    (use-local-map (make-sparse-keymap))
    (local-set-key (kbd "C-c C-q") #'ignore)
    (qwen-companion-review-keys-mode 1)
    (let (names)
      (map-keymap (lambda (event binding)
                    (when (eq ?, event)
                      (push (car-safe binding) names)))
                  (key-binding (kbd "C-c")))
      (should (equal '("qwen-companion") names)))))

(ert-deftest qwen-companion-terminal-test-escape ()
  "Sent to the program in the terminal; the mode line of a text terminal has the key."
  (with-temp-buffer
    (should-error (qwen-companion-terminal-escape) :type 'user-error)
    (qwen-companion-review-keys-mode 1)
    (should (equal " Esc:C-c , i" (substring-no-properties (qwen-companion-review--escape-hint))))
    (let ((process (make-process :name "cat" :buffer (current-buffer) :command '("cat" "-v")
                                 :connection-type 'pipe)))
      (set-process-query-on-exit-flag process nil)
      (call-interactively (key-binding (kbd "C-c , i")))
      (qwen-companion-test-wait-for (string-search "^[" (buffer-string)))
      (delete-process process))))

(provide 'qwen-companion-terminal-test)
;;; qwen-companion-terminal-test.el ends here
