;;; qwen-companion-terminal.el --- Qwen Code in a terminal of Emacs  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Sets the environment of this Emacs's terminals, by which a CLI finds the
;; companion, and starts `qwen' in one of them.
;;
;; A CLI searches for its editor once, when it starts.  So `qwen-companion-run'
;; opens the terminal only when the discovery files name its project.

;;; Code:

(require 'cl-lib)
(require 'seq)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-messages)
(require 'qwen-companion-programs)
(require 'qwen-companion-quote)
(require 'qwen-companion-roots)
(require 'qwen-companion-spool)
(require 'qwen-companion-terminal-kinds)
(require 'qwen-companion-terminal-updates)
(require 'qwen-companion-untrusted)

(defcustom qwen-companion-qwen-command '("qwen")
  "The program and arguments that start Qwen Code, a list of strings."
  :group 'qwen-companion
  :type '(repeat :tag "Program and arguments" string))

(defcustom qwen-companion-approval-mode nil
  "Approval mode in which `qwen-companion-run' starts the CLI.
If nil, the CLI follows its own settings; a fresh Qwen Code starts in
\"auto\", see `qwen-companion-review-edits' for the reviews in that mode.
In \"default\" the CLI asks before each change of a file, which is
reviewed, and each command.  In \"auto-edit\" and \"yolo\" nothing is
reviewed unless `qwen-companion-review-edits' is `all-modes'."
  :group 'qwen-companion
  :type '(choice (const "default") (const "plan") (const "auto-edit")
                 (const "auto") (const "yolo")
                 (const :tag "As the CLI is configured" nil)
                 (string :tag "Other"))
  ;; A project may make the CLI ask more than the user's own value does, never
  ;; less.
  :safe (lambda (value)
          (let ((own (default-value 'qwen-companion-approval-mode)))
            (or (equal value own)
                (equal value "plan")
                (and (equal value "default") (not (equal own "plan")))))))

(defcustom qwen-companion-terminal-editor t
  "Non-nil means that this Emacs is the editor of CLIs in its terminals.
A CLI opens an editor for a prompt that you want to edit, for example;
proposals come to Emacs in any case.  This needs the server of Emacs, see
`server-start', before the CLI starts."
  :group 'qwen-companion
  :type 'boolean)

;;; Environment

(defvar qwen-companion-terminal--saved nil
  "The variables we have set: (NAME VALUE . PREVIOUS-VALUE-OR-NIL).")

(defun qwen-companion-terminal--getenv (name)
  "Return the value of NAME for all processes started from now on."
  (let ((process-environment (default-value 'process-environment)))
    (getenv name)))

(defun qwen-companion-terminal--setenv (name value)
  "Set NAME to VALUE for all processes started from now on.
If VALUE is nil, remove it.  Buffers with a local environment keep theirs."
  (setq-default process-environment
                (let ((process-environment
                       (copy-sequence (default-value 'process-environment))))
                  (setenv name value)
                  ;; A name without "=" would hide the value of a frame or a
                  ;; parent.
                  (delete name process-environment))))

(defun qwen-companion-terminal-set-environment (variables)
  "Set VARIABLES, a list of (NAME VALUE), for terminals opened from now on.
Restore those that were set before and are not among VARIABLES."
  (pcase-dolist (`(,name . ,_) (copy-sequence qwen-companion-terminal--saved))
    (unless (assoc name variables)
      (qwen-companion-terminal--restore-variable name)))
  (pcase-dolist (`(,name ,value) variables)
    (let ((saved (assoc name qwen-companion-terminal--saved))
          (present (qwen-companion-terminal--getenv name)))
      (cond ((not saved)
             (push (cons name (cons value present))
                   qwen-companion-terminal--saved))
            ((equal present (cadr saved))
             (setcar (cdr saved) value))
            ;; The user has set it meanwhile.
            (t (setcdr saved (cons value present)))))
    (qwen-companion-terminal--setenv name value)))

(defun qwen-companion-terminal--restore-variable (name)
  "Restore the variable NAME unless the user has set it since."
  (pcase-let ((`(,_ ,value . ,before)
               (assoc name qwen-companion-terminal--saved)))
    (when (equal value (qwen-companion-terminal--getenv name))
      (qwen-companion-terminal--setenv name before)))
  (setq qwen-companion-terminal--saved
        (assoc-delete-all name qwen-companion-terminal--saved)))

(defun qwen-companion-terminal-environment-before ()
  "Return the entries that remove our variables from an environment."
  (cl-loop for (name value . before) in qwen-companion-terminal--saved
           when (equal value (qwen-companion-terminal--getenv name))
           collect (if before (concat name "=" before) name)))

(defun qwen-companion-terminal-restore-environment ()
  "Restore the environment of new terminals."
  (qwen-companion-terminal-set-environment nil))

;;; Terminals of the connected CLIs

(defvar-local qwen-companion-terminal-number nil
  "Number of this terminal if its CLI is at another place; else nil.")

(defun qwen-companion-terminal-session-buffer (session)
  "Return the live buffer of the terminal of SESSION, or nil.
SESSION is one of `qwen-companion-backend-sessions'.  The buffer is that
of the nearest process of this Emacs above the CLI: a terminal, a shell or
another.  A CLI at another place has a terminal there.  There is no buffer
for a CLI in tmux, in a terminal that this Emacs has not started, or with
an unknown process."
  (let ((place (qwen-companion-session-place session))
        (number (qwen-companion-session-terminal session)))
    (cl-flet ((there-p (buffer)
                (or (not place)
                    (string-prefix-p (concat place "/")
                                     (buffer-local-value 'default-directory buffer)))))
      (or (and number
               (cl-find-if (lambda (buffer)
                             (and (eql number (buffer-local-value 'qwen-companion-terminal-number
                                                                  buffer))
                                  (there-p buffer)))
                           (buffer-list)))
          (cl-some (lambda (pid)
                     (cl-some (lambda (process)
                                (and (eql pid (if place
                                                  (process-get process 'remote-pid)
                                                (process-id process)))
                                     (process-live-p process)
                                     (buffer-live-p (process-buffer process))
                                     (there-p (process-buffer process))
                                     (process-buffer process)))
                              (process-list)))
                   (qwen-companion-session-ancestors session))))))

(defun qwen-companion-terminal-cli-name (id name)
  "Return NAME of the CLI of the session ID, distinguished from others.
If another connected CLI is of the same kind and version, replace the
version by the directory of this one, or else by its terminal or process."
  (let* ((session (qwen-companion-backend-session id))
         (kind (lambda (each)
                 (list (qwen-companion-session-client each) (qwen-companion-session-version each))))
         (place (lambda (each)
                  (when-let* ((directory (qwen-companion-session-directory each)))
                    (qwen-companion-untrusted-text
                     (file-name-nondirectory (directory-file-name directory))))))
         (same (and session
                    (cl-remove (funcall kind session) (qwen-companion-backend-sessions)
                               :key kind :test-not #'equal))))
    (if (null (cdr same))
        name
      (format "%s in %s" (replace-regexp-in-string " [0-9][0-9.]*\\'" "" name)
              (let ((own (funcall place session))
                    (buffer (qwen-companion-terminal-session-buffer session)))
                (cond ((and own (= 1 (cl-count own same :key place :test #'equal))) own)
                      (buffer (buffer-name buffer))
                      (t (format "process %s"
                                 (or (qwen-companion-backend-process-text session) "?")))))))))

(defun qwen-companion-terminal-conversation-here ()
  "Return the conversation of the CLI in the terminal of this buffer, or nil.
The id of a remote one includes its place, as a local one may have the same
number."
  (when-let* ((session (cl-find (current-buffer) (qwen-companion-backend-sessions)
                                :key #'qwen-companion-terminal-session-buffer))
              (conversation (qwen-companion-cli-state-conversation
                             (qwen-companion-session-state session))))
    (string-join (delq nil (list conversation (qwen-companion-session-place session))) " ")))

(defconst qwen-companion-terminal--paste-pause 0.5
  "Seconds between pasting a text and the key that sends it.
A CLI treats an earlier return as a part of the text.")

(defun qwen-companion-terminal-send-prompt (buffer prompt)
  "Paste PROMPT into the terminal BUFFER and send it there with return.
Leave out control characters, which could end the paste."
  (let ((text (replace-regexp-in-string "[\u0000-\u0008\u000B-\u001F\u007F-\u009F]" ""
                                        prompt t t))
        (process (get-buffer-process buffer)))
    (unless (process-live-p process)
      (user-error "The program in %s has ended" (buffer-name buffer)))
    (qwen-companion-terminal-paste-text buffer text)
    (run-at-time qwen-companion-terminal--paste-pause nil
                 #'qwen-companion-terminal--send-return buffer)))

(defun qwen-companion-terminal-retry (buffer)
  "Press the key by which the Qwen Code in BUFFER repeats a failed request."
  (with-current-buffer buffer
    (qwen-companion-terminal--press "\C-y")))

(defun qwen-companion-terminal--press (key)
  "Send KEY, a string, to the program in this terminal.
Signal a `user-error' if none runs."
  (let ((process (get-buffer-process (current-buffer))))
    (when (or qwen-companion-terminal-outside (not (process-live-p process)))
      (user-error "No program runs in this buffer"))
    (process-send-string process key)))

(defun qwen-companion-terminal--send-return (buffer)
  "Press return in the terminal BUFFER if its program is still there."
  (when (and (buffer-live-p buffer)
             (process-live-p (get-buffer-process buffer)))
    (with-current-buffer buffer
      (qwen-companion-terminal-kinds-return))))

(defun qwen-companion-terminal-paste-text (buffer text)
  "Paste TEXT into the terminal BUFFER."
  (with-current-buffer buffer
    (when qwen-companion-terminal-outside
      (user-error "The terminal of %s is outside of Emacs; nothing can be pasted there"
                  (buffer-name)))
    (qwen-companion-terminal-kinds-paste text)))

;;;###autoload
(defun qwen-companion-terminal-escape ()
  "Send Esc to the program in this terminal, for example to stop a CLI.
In `emacs -nw' the key Esc is the prefix for Meta and does not reach it."
  (interactive)
  (qwen-companion-terminal--press "\e"))

;;; Waiting for the discovery files

(defvar qwen-companion-terminal--waiting nil
  "CLIs to start once the discovery files name their directories.
Each is a list of arguments for `qwen-companion-terminal--open'.")

(defvar qwen-companion-terminal--events nil
  "Value of `num-nonmacro-input-events' at the user's command, if that was before.")

(defvar qwen-companion-terminal-clis nil
  "Commands of the CLIs that were chosen for directories: (DIRECTORY . COMMAND).
In other directories, `qwen-companion-qwen-command' is run.")

(defun qwen-companion-terminal-published ()
  "Start the waiting CLIs whose roots the discovery files now name."
  (dolist (cli (reverse qwen-companion-terminal--waiting))
    (when (qwen-companion-roots-published-p (car cli))
      (setq qwen-companion-terminal--waiting
            (delete cli qwen-companion-terminal--waiting))
      (apply #'qwen-companion-terminal--open cli))))

(defun qwen-companion-terminal-forget ()
  "Cancel the CLIs that wait to start, and forget those chosen for directories."
  (setq qwen-companion-terminal--waiting nil
        qwen-companion-terminal-clis nil))

;;; Running the CLI

(defvar dnd-protocol-alist)
(defvar server-name)
(defvar server-socket-dir)
(defvar server-auth-dir)
(defvar server-process)
(defvar server-use-tcp)

(defvar-local qwen-companion-terminal-directory nil
  "Directory in which the CLI of this terminal buffer was started.")

(defvar-local qwen-companion-terminal-arguments nil
  "Arguments with which the CLI of this terminal buffer was started.
Those from the options are not included.")

(defvar-local qwen-companion-terminal-prompt-file nil
  "File from which the CLI of this terminal buffer reads prompts, nil for none.")

(defvar qwen-companion-terminal--prompt-files 0
  "Number of the last prompt file.")

(defvar qwen-companion-terminal-opened-hook nil
  "Hook run in the buffer of a terminal in which a CLI has been started.")

(defun qwen-companion-terminal-buffers ()
  "Return the live buffers in which `qwen-companion-run' started a CLI."
  (cl-remove-if-not
   (lambda (buffer)
     (buffer-local-value 'qwen-companion-terminal-directory buffer))
   (buffer-list)))

(defun qwen-companion-terminal--name (directory)
  "Return the name of the terminal buffer for DIRECTORY."
  (format "*qwen: %s*"
          (file-name-nondirectory (directory-file-name directory))))

(defun qwen-companion-terminal--buffers-for (directory)
  "Return the terminal buffers in which a CLI was started in DIRECTORY."
  (cl-remove-if-not
   (lambda (buffer)
     (equal directory
            (buffer-local-value 'qwen-companion-terminal-directory buffer)))
   (qwen-companion-terminal-buffers)))

(defun qwen-companion-terminal--live-p (buffer)
  "Return non-nil if the program of the terminal BUFFER is running."
  (process-live-p (get-buffer-process buffer)))

(defun qwen-companion-terminal-running (directory)
  "Return the buffer of the CLI that is running in DIRECTORY, or nil."
  (cl-find-if #'qwen-companion-terminal--live-p
              (qwen-companion-terminal--buffers-for directory)))

(defun qwen-companion-terminal-program ()
  "Return the program of the CLI and its arguments, `qwen-companion-qwen-command'.
Signal a `user-error' if the program is missing."
  (let ((program (car qwen-companion-qwen-command)))
    (unless (and program (qwen-companion-programs-find program))
      (user-error "No program `%s' found; install it with `npm install -g @qwen-code/qwen-code', or customize `qwen-companion-qwen-command'"
                  program))
    qwen-companion-qwen-command))

(defun qwen-companion-terminal-command ()
  "Return the program and arguments to run.
Signal a `user-error' if the program is missing."
  (append (qwen-companion-terminal-program)
          (when qwen-companion-approval-mode
            (list "--approval-mode" qwen-companion-approval-mode))))

(defconst qwen-companion-terminal--prompt-file-version "0.15.10"
  "The first version of Qwen Code that reads prompts from a file.")

(defun qwen-companion-terminal--reads-prompts-p (program)
  "Return non-nil if PROGRAM is a Qwen Code with the option `--input-file'.
Others fail to start with an unknown option.  Read the version from the
package description beside the target of PROGRAM, a link."
  (let* ((true (file-truename (or (qwen-companion-programs-find program) program)))
         (description (expand-file-name "package.json" (file-name-directory true))))
    (and (file-readable-p description)
         (with-temp-buffer
           (insert-file-contents description nil 0 2000)
           (and (re-search-forward "\"name\": *\"@qwen-code/qwen-code\"" nil t)
                (re-search-forward "\"version\": *\"\\([0-9.]+\\)" nil t)
                (version<= qwen-companion-terminal--prompt-file-version
                           (string-trim-right (match-string 1) "\\.")))))))

(defun qwen-companion-terminal--new-prompt-file (program)
  "Return a name for the prompt file of PROGRAM, nil if it has none.
Do not create the file: a CLI skips its text from before the start."
  (when-let* ((spool (qwen-companion-backend-spool))
              ((qwen-companion-terminal--reads-prompts-p program)))
    (expand-file-name (format "prompts-%d" (cl-incf qwen-companion-terminal--prompt-files))
                      spool)))

(defun qwen-companion-terminal--file-arguments (file)
  "Return arguments for FILE as the prompt file of a CLI, nil for none.
They also name a file for its events; create that, readable by its user
only."
  (when file
    (let ((events (concat file "-events")))
      (with-file-modes #o600
        (write-region "" nil events nil 'silent))
      (list "--input-file" file "--json-file" events))))

(defun qwen-companion-terminal--kind ()
  "Return the terminal emulator to use, a symbol."
  (or qwen-companion-terminal
      (if (locate-library "vterm") 'vterm 'term)))

(defun qwen-companion-terminal-open-at (directory arguments command number)
  "Start a CLI with ARGUMENTS in DIRECTORY, at another place, in a terminal.
COMMAND is the local command for that, and NUMBER that of the terminal."
  (qwen-companion-terminal--remove-ended directory)
  (let ((buffer (generate-new-buffer (qwen-companion-terminal--name directory)))
        (kind (qwen-companion-terminal--kind)))
    (qwen-companion-terminal-kinds-load kind)
    (with-current-buffer buffer
      (setq default-directory (expand-file-name "~/"))
      (qwen-companion-terminal-start kind buffer command))
    (when (buffer-live-p buffer)
      (with-current-buffer buffer
        (setq default-directory (file-name-as-directory directory)
              qwen-companion-terminal-number number))
      (qwen-companion-terminal--opened buffer directory arguments nil))))

(defun qwen-companion-terminal--remove-ended (directory)
  "Kill the terminals in DIRECTORY whose CLI has ended."
  (mapc #'kill-buffer
        (cl-remove-if #'qwen-companion-terminal--live-p
                      (qwen-companion-terminal--buffers-for directory))))

(defun qwen-companion-terminal--environment ()
  "Return the environment of the current buffer, a cons.
Its values are for the variables `exec-path' and `process-environment',
which envrc and direnv make local to buffers."
  (cons exec-path process-environment))

(defun qwen-companion-terminal--variables ()
  "Return our variables that the user has not changed, as NAME=VALUE."
  (cl-loop for (name value . _) in qwen-companion-terminal--saved
           when (equal value (qwen-companion-terminal--getenv name))
           collect (concat name "=" value)))

(defun qwen-companion-terminal--open (directory &optional arguments events environment)
  "Start the CLI with ARGUMENTS in a terminal in DIRECTORY; select its window.
Do not select it if there was input after so many EVENTS, unless that is
nil.  ENVIRONMENT is the CLI's, by default that of the current buffer.
Kill the terminals there whose CLI has ended."
  (qwen-companion-terminal--remove-ended directory)
  (let ((stay (and events (/= events num-nonmacro-input-events) (selected-window)))
        (environment (or environment (qwen-companion-terminal--environment))))
    ;; The variables are not local to this buffer, so the bindings hold in all
    ;; others too.
    (with-temp-buffer
      (let* ((exec-path (car environment))
             ;; Use the current values of our variables: they may not have been
             ;; set at the user's command.
             (process-environment (append (qwen-companion-terminal--variables)
                                          (cdr environment)))
             (process-environment (append (qwen-companion-terminal--editor-variables)
                                          process-environment))
             (options (qwen-companion-terminal--options directory))
             (kind (car options))
             (command (append (if (file-remote-p directory)
                                  (cdr options)
                                (qwen-companion-programs-for-user (cdr options)))
                              arguments))
             (file (qwen-companion-terminal--new-prompt-file (car command)))
             (buffer (generate-new-buffer (qwen-companion-terminal--name directory))))
        (qwen-companion-terminal-kinds-load kind)
        (with-current-buffer buffer
          (setq default-directory (file-name-as-directory directory))
          (qwen-companion-terminal-start
           kind buffer (append command (qwen-companion-terminal--file-arguments file))))
        (when (window-live-p stay)
          (select-window stay))
        (when (buffer-live-p buffer)
          (qwen-companion-terminal--opened buffer directory arguments file))))))

(defun qwen-companion-terminal--opened (buffer directory arguments file)
  "Set up BUFFER, the terminal of a CLI with ARGUMENTS in DIRECTORY.
The CLI reads prompts from FILE, nil for none."
  (with-current-buffer buffer
    (setq qwen-companion-terminal-directory directory
          qwen-companion-terminal-arguments arguments
          qwen-companion-terminal-prompt-file file)
    (when-let* ((process (get-buffer-process buffer)))
      (qwen-companion-terminal-coalesce-screen-updates process))
    (when (boundp 'dnd-protocol-alist)
      (setq-local dnd-protocol-alist
                  (cons '("^file:" . qwen-companion-terminal--drop) dnd-protocol-alist)))
    (run-hooks 'qwen-companion-terminal-opened-hook)))

(defun qwen-companion-terminal--options (directory)
  "Return the terminal and the command for DIRECTORY: (KIND PROGRAM . ARGUMENTS).
Use safe values in its .dir-locals.el, without asking."
  (with-temp-buffer
    (setq default-directory (file-name-as-directory directory))
    (let ((enable-local-variables :safe))
      (hack-dir-local-variables-non-file-buffer))
    (cons (qwen-companion-terminal--kind)
          (or (cdr (assoc directory qwen-companion-terminal-clis))
              (qwen-companion-terminal-command)))))

(defun qwen-companion-terminal--editor-variables ()
  "Return the variables that make this Emacs a CLI's editor, if wanted.
A CLI reads the whole variable as a program's name, so another variable
names the server."
  (when-let* (((and qwen-companion-terminal-editor
                    (featurep 'server)
                    (process-live-p server-process)))
              (program (or (qwen-companion-programs-find
                            (expand-file-name "emacsclient" invocation-directory))
                           (qwen-companion-programs-find "emacsclient"))))
    (list (concat "EDITOR=" program)
          (concat "VISUAL=" program)
          (if server-use-tcp
              (concat "EMACS_SERVER_FILE=" (expand-file-name server-name server-auth-dir))
            (concat "EMACS_SOCKET_NAME=" (expand-file-name server-name server-socket-dir))))))

(defun qwen-companion-terminal-here ()
  "Return the directory of this terminal's CLI, or else that of the project.
The name has no final slash."
  (directory-file-name
   (expand-file-name (or qwen-companion-terminal-directory
                         (qwen-companion-roots-here)))))

(defun qwen-companion-terminal-recent (directory)
  "Return the terminals of DIRECTORY, the last used first."
  (seq-filter (lambda (buffer)
                (equal directory
                       (buffer-local-value 'qwen-companion-terminal-directory buffer)))
              (buffer-list)))

(defun qwen-companion-terminal-go-to (directory)
  "Select the terminal of the CLI running in DIRECTORY; return nil without one."
  (when-let* ((buffer (qwen-companion-terminal-running directory)))
    (qwen-companion-terminal-show buffer)))

(defun qwen-companion-terminal-open (directory &optional arguments)
  "Start the CLI in a terminal in DIRECTORY, a name without final slash.
ARGUMENTS are further arguments of the CLI.  The terminal opens when the
discovery files name DIRECTORY; after more input it is shown, not
selected."
  (cl-pushnew (list directory arguments
                    (or qwen-companion-terminal--events num-nonmacro-input-events)
                    (qwen-companion-terminal--environment))
              qwen-companion-terminal--waiting :test #'equal)
  (qwen-companion-roots-add directory)
  (qwen-companion-terminal-published))

(defun qwen-companion-terminal-replace (buffer windows directory arguments)
  "Start a CLI with ARGUMENTS in DIRECTORY in place of that in BUFFER.
Its program has ended.  Show the new terminal in its windows, or if BUFFER
is dead in the live ones of WINDOWS; the selected window stays."
  (let* ((windows (if (buffer-live-p buffer)
                      (get-buffer-window-list buffer nil t)
                    windows))
         (window (seq-find #'window-live-p windows)))
    (when (buffer-live-p buffer)
      (kill-buffer buffer))
    (qwen-companion-roots-add directory)
    (if (not (qwen-companion-roots-published-p directory))
        (qwen-companion-terminal-open directory arguments)
      (if (not window)
          (save-window-excursion
            (qwen-companion-terminal--open directory arguments))
        (with-selected-window window
          (let ((display-buffer-overriding-action
                 '(display-buffer-same-window (inhibit-same-window . nil))))
            (qwen-companion-terminal--open directory arguments)))
        (dolist (other (remq window windows))
          (when (window-live-p other)
            (set-window-buffer other (window-buffer window))))))))

(defun qwen-companion-terminal-kept-arguments (buffer)
  "Return the arguments of the CLI in BUFFER without a conversation or worktree.
Another CLI of the same kind can be started with them."
  (let ((arguments (buffer-local-value 'qwen-companion-terminal-arguments buffer)))
    (cl-loop while arguments
             for argument = (pop arguments)
             if (equal argument "--resume") do (pop arguments)
             else unless (string-match-p "\\`--\\(?:continue\\|fork-session\\|worktree\\)" argument)
             collect argument)))

;;; Worktrees

(defun qwen-companion-terminal-in-worktrees (directory names start)
  "Call START with each of the worktrees NAMES of DIRECTORY's repository.
They are below .qwen/worktrees of the main tree.  Git creates the missing
ones, one after the other, from the commit in DIRECTORY.  Return at once,
with a text about changes that they lack.  Signal a `user-error' if git
cannot create one."
  (let* ((main (qwen-companion-terminal--main-tree directory))
         (events num-nonmacro-input-events)
         (files (qwen-companion-terminal--git directory "status" "--porcelain" "-z" "--no-renames"
                                              "--ignore-submodules=dirty"))
         (count (length (split-string (or files "") "\0" t))))
    (cl-labels ((path (name) (expand-file-name (concat ".qwen/worktrees/" name) main))
                (there-p (name) (file-exists-p (expand-file-name ".git" (path name))))
                (next ()
                  (when-let* ((name (pop names))
                              (begin (lambda ()
                                       (let ((qwen-companion-terminal--events events))
                                         (funcall start (path name)))
                                       (next))))
                    (if (there-p name)
                        (funcall begin)
                      (qwen-companion-terminal-run-git
                       directory begin "worktree" "add" "--quiet"
                       "-b" (concat "worktree-" name) (path name))))))
      (dolist (name names)
        (unless (string-match-p "\\`[[:alnum:]_][[:alnum:]._-]*\\'" name)
          (user-error "Not a name of a worktree: %s; use letters, digits, ._-" name))
        (when (and (not (there-p name))
                   (qwen-companion-terminal--git main "rev-parse" "--verify" "--quiet"
                                                 (concat "refs/heads/worktree-" name)))
          (user-error "There is a branch worktree-%s already; choose another name" name)))
      (unless (qwen-companion-terminal--git main "check-ignore" "--quiet" (path "x"))
        (make-directory (path "") t)
        (write-region "worktrees/\n" nil (expand-file-name ".qwen/.gitignore" main) t 0))
      (next))
    (if (= count 0)
        ""
      (format ", without uncommitted changes (%d file%s)" count (if (= count 1) "" "s")))))

(defun qwen-companion-terminal--main-tree (directory)
  "Return the main work tree of the repository of DIRECTORY.
Signal a `user-error' if git cannot create another one."
  (let ((top (qwen-companion-terminal--git directory "rev-parse" "--show-toplevel"))
        (trees (qwen-companion-terminal--git directory "worktree" "list" "--porcelain" "-z")))
    (unless top
      (user-error "%s is in no git repository with a work tree; git init makes one"
                  (abbreviate-file-name directory)))
    (unless (qwen-companion-terminal--git directory "rev-parse" "--verify" "--quiet" "HEAD")
      (user-error "The repository has no commit to start a worktree from; commit first"))
    (unless trees
      (user-error "Git cannot list worktrees; git 2.36 or later can"))
    (if (string-match "\\`worktree \\([^\0]*\\)\0HEAD" trees)
        (let ((main (match-string 1 trees)))
          ;; For a submodule, git names the directory of the repository.
          (or (qwen-companion-terminal--git main "rev-parse" "--show-toplevel") main))
      ;; The repository is bare.
      top)))

(defun qwen-companion-terminal-run-git (directory then &rest arguments)
  "Run git with ARGUMENTS in DIRECTORY; return at once.
When it has ended, call THEN, or show its error if it has failed."
  (let ((buffer (generate-new-buffer " *qwen-companion git*")))
    (qwen-companion-programs-start
     :name "qwen-companion-git" :buffer buffer :noquery t :connection-type 'pipe
     :command (apply #'qwen-companion-programs-git directory arguments)
     :sentinel
     (lambda (process _event)
       (unless (process-live-p process)
         (let ((text (with-current-buffer buffer (buffer-string))))
           (kill-buffer buffer)
           (if (eql 0 (process-exit-status process))
               (funcall then)
             (message "git failed: %s" (qwen-companion-untrusted-line text)))))))))

(defun qwen-companion-terminal--git (directory &rest arguments)
  "Return the output of git with ARGUMENTS in DIRECTORY, nil if it fails."
  (with-temp-buffer
    (when (eql 0 (ignore-errors
                   (apply #'qwen-companion-programs-call
                          (apply #'qwen-companion-programs-git directory arguments))))
      (string-trim-right (buffer-string)))))

;;; Files and images

;; A file that is dropped on a terminal, and an image in the clipboard, are
;; mentioned in the prompt of the CLI, as if their names had been typed.

(defun qwen-companion-terminal--mention (file)
  "Paste FILE as a mention into the terminal of the current buffer.
For a CLI at another place, first copy a file that it cannot read there."
  (let* ((directory qwen-companion-terminal-directory)
         (place (file-remote-p directory)))
    (unless (equal (file-remote-p file) place)
      (setq file (if-let* ((path (and place (qwen-companion-places-shared-path file place))))
                     (concat place path)
                   (qwen-companion-terminal--copy file directory))))
    (qwen-companion-terminal-paste-text
     (current-buffer)
     (format "@%s " (qwen-companion-quote-escape
                     (qwen-companion-quote-relative-name file directory))))))

(defun qwen-companion-terminal--copy (file directory)
  "Copy FILE to a temporary file at the place of DIRECTORY, for its user alone.
Return the name of the copy, which is deleted with the current buffer."
  (let* ((default-directory (file-name-as-directory directory))
         (copy (make-nearby-temp-file "qwen-" nil (file-name-extension file t))))
    (add-hook 'kill-buffer-hook
              (lambda ()
                ;; Not worth a new connection.
                (let ((non-essential t))
                  (ignore-errors (delete-file copy))))
              nil t)
    (copy-file file copy t)
    (set-file-modes copy #o600)
    copy))

(declare-function dnd-get-local-file-name "dnd" (uri &optional must-exist))

(defun qwen-companion-terminal--drop (uri _action)
  "Paste the file URI, which was dropped on a terminal, as a mention."
  (when-let* ((file (dnd-get-local-file-name uri t)))
    (qwen-companion-terminal--mention file)
    'private))

;;;###autoload
(defun qwen-companion-paste-image ()
  "Save the clipboard's image in a file and mention that in the CLI's prompt.
The CLI is that of this terminal, or else of the project."
  (interactive)
  (let* ((buffer (if qwen-companion-terminal-directory
                     (current-buffer)
                   (or (car (qwen-companion-terminal-recent
                             (qwen-companion-terminal-here)))
                       (user-error "No CLI terminal here; M-x qwen-companion-run starts one"))))
         (file (qwen-companion-spool-clipboard-image)))
    (with-current-buffer buffer
      (qwen-companion-terminal--mention file))))

(provide 'qwen-companion-terminal)
;;; qwen-companion-terminal.el ends here
